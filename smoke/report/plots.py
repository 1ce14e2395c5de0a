"""Plots of a report as inline SVG. Colours of text and lines follow the page, so they work light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smoke.report.model import Report

# Stand-ins that the page's CSS replaces; matplotlib only needs them to be colours.
_INK, _FAINT = "#010203", "#040506"
_SERIES = ("#2f7fd1", "#d9822b", "#3a9d5d", "#b65fcf", "#c94f4f")  # readable on white and on near-black
GB = 1e9


@dataclass(frozen=True)
class Plot:
    """A drawn figure. `svg` is empty when there was nothing to draw, and `why` says so."""

    title: str
    caption: str
    svg: str
    why: str = ""


def draw_all(r: Report) -> list[Plot]:
    """Every plot of the report, in page order; those without data carry the reason instead."""
    return [
        _plot("Acceptance by prompt family", "accepted tokens per verification step; dashes: the preset's floor",
              _acceptance, r, data=bool(r.acceptance), why="no speculation, or its group did not run"),
        _plot("Speed by concurrency", "generated tokens per second over all streams, by workload",
              _throughput, r, data=bool(r.loads), why="no workload ran"),
        _plot("Latency by concurrency", "median seconds of a whole request, by workload",
              _latency, r, data=bool(r.loads), why="no workload ran"),
        _plot("Time to first token by depth", "seconds, first and repeated (prefix cache) prompt of that many tokens",
              _ttft, r, data=bool(r.depths), why="the long-context group did not run"),
        _plot("Memory available on the host", "gigabytes over the run; the line marks the low-water mark",
              _memory, r, data=len(r.memory) > 1, why="the target is not on this machine, or the run was too short"),
        _plot("Boot phases", "seconds per phase of each start", _boots, r, data=bool(r.boots), why="the engine never started"),
    ]  # fmt: skip


def _plot(
    title: str, caption: str, draw: Callable[[Any, Report], None], r: Report, *, data: bool, why: str
) -> Plot:
    if not data:
        return Plot(title, caption, "", why)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "svg.hashsalt": title,
        "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
        "axes.edgecolor": _FAINT, "grid.color": _FAINT, "grid.linewidth": 0.5, "axes.grid": True,
        "axes.grid.axis": "y", "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
        "legend.frameon": False, "legend.fontsize": 9,
    }  # fmt: skip
    with mpl.rc_context(style):
        fig = Figure(figsize=(5.6, 3.1), layout="constrained")
        ax = fig.subplots()
        draw(ax, r)
        out = io.StringIO()
        fig.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return Plot(title, caption, _inline(out.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    # Several figures share one page: their ids must not meet.
    tag = re.sub(r"\W+", "", title)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{tag}-\1"', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{tag}-", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_FAINT, "var(--faint)")
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _legend(ax: Any, n: int) -> None:
    if n > 1:
        ax.legend(
            ncols=min(n, 3), loc="upper left", bbox_to_anchor=(0, 1.16), borderaxespad=0, handlelength=1.2
        )


def _acceptance(ax: Any, r: Report) -> None:
    families = list(dict.fromkeys(a.family for a in r.acceptance))
    depths = sorted({a.depth for a in r.acceptance})
    labelled: set[int] = set()
    for i, family in enumerate(families):
        mine = sorted((a for a in r.acceptance if a.family == family), key=lambda a: a.depth)
        width = 0.8 / max(2, len(mine))
        for k, a in enumerate(mine):
            x = i + (k - (len(mine) - 1) / 2) * width
            label = None if a.depth in labelled else f"at {a.depth} tokens"
            labelled.add(a.depth)
            ax.bar(
                x, a.length, width * 0.92, label=label, color=_SERIES[depths.index(a.depth) % len(_SERIES)]
            )
            ax.annotate(
                f"{a.length:.2f}",
                (x, a.length),
                ha="center",
                va="bottom",
                fontsize=8,
                xytext=(0, 1),
                textcoords="offset points",
            )
    floors = sorted({a.floor for a in r.acceptance if a.floor is not None})
    for floor in floors:
        ax.axhline(floor, color=_INK, linestyle="--", linewidth=1)
    ax.set_xticks(range(len(families)), families)
    ax.set_xlim(-0.6, len(families) - 0.4)
    ax.set_ylim(0, max([a.length for a in r.acceptance] + floors) * 1.2)
    _legend(ax, len(depths))


def _by_shape(ax: Any, r: Report, value: str) -> None:
    groups: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for w in r.loads:
        y = getattr(w, value)
        if y is not None:
            groups.setdefault((w.prompt, w.output), []).append((w.concurrency, y))
    merged: dict[str, list[tuple[int, float]]] = {}
    for (prompt, output), points in groups.items():
        merged.setdefault(f"{prompt}/{output}", []).extend(points)
    for k, (name, points) in enumerate(merged.items()):
        x, y = zip(*sorted(points), strict=True)
        ax.plot(x, y, marker="o", markersize=4, label=name, color=_SERIES[k % len(_SERIES)])
    ticks = sorted({c for p in merged.values() for c, _ in p})
    ax.set_xticks(ticks)
    ax.set_xlabel("requests at once")
    ax.set_ylim(bottom=0)
    _legend(ax, len(merged))


def _throughput(ax: Any, r: Report) -> None:
    _by_shape(ax, r, "throughput")
    ax.set_ylabel("tokens/s")


def _latency(ax: Any, r: Report) -> None:
    _by_shape(ax, r, "latency_s")
    ax.set_ylabel("s")


def _ttft(ax: Any, r: Report) -> None:
    x = [d.tokens for d in r.depths]
    ax.plot(x, [d.ttft_s for d in r.depths], marker="o", markersize=4, label="first time", color=_SERIES[0])
    again = [(d.tokens, d.again_s) for d in r.depths if d.again_s is not None]
    if again:
        ax.plot(*zip(*again, strict=True), marker="o", markersize=4, label="again", color=_SERIES[1])
    ax.set_xlabel("prompt tokens")
    ax.set_ylabel("s")
    ax.set_ylim(bottom=0)
    _legend(ax, 2)


def _memory(ax: Any, r: Report) -> None:
    x, y = [p.at for p in r.memory], [p.available / GB for p in r.memory]
    ax.plot(x, y, color=_SERIES[0], linewidth=1.5)
    low = min(range(len(y)), key=y.__getitem__)
    ax.axhline(y[low], color=_SERIES[4], linewidth=1, linestyle="--")
    ax.annotate(f"low {y[low]:.1f} GB", (x[low], y[low]), xytext=(0, -11), textcoords="offset points", fontsize=9,
                ha="right" if x[low] > x[-1] / 2 else "left")  # fmt: skip
    ax.set_xlabel("seconds")
    ax.set_ylabel("GB")
    ax.set_ylim(bottom=0)


def _boots(ax: Any, r: Report) -> None:
    phases = list(dict.fromkeys(p.phase for b in r.boots for p in b.phases))
    rows = list(range(len(r.boots)))[::-1]
    left = [0.0] * len(r.boots)
    for k, phase in enumerate(phases):
        widths = [next((p.seconds for p in b.phases if p.phase == phase), 0.0) for b in r.boots]
        ax.barh(rows, widths, 0.6, left=left, label=phase, color=_SERIES[k % len(_SERIES)])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, total in zip(rows, left, strict=True):
        ax.annotate(f" {total:.1f} s", (total, row), va="center", fontsize=9)
    ax.set_yticks(rows, [b.name for b in r.boots])
    ax.set_xlim(0, max(left) * 1.2 or 1)
    ax.set_xlabel("seconds")
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    _legend(ax, len(phases))
