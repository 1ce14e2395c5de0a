"""What changed between two reports: checks that turned, speeds and acceptance that moved, bindings that differ."""

from __future__ import annotations

from dataclasses import dataclass, field

from smoke.report.model import Report

NOTEWORTHY = 0.05  # relative change below which a measurement is called the same


@dataclass
class Diff:
    """`worse` and `better`: checks that turned; `binding`: what differs in what they hold for; `moved`: measurements."""

    binding: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.binding or self.worse or self.better or self.gone or self.new or self.moved)


def diff(a: Report, b: Report) -> Diff:
    d = Diff()
    one, two = a.bound.model_dump(), b.bound.model_dump()
    d.binding = [f"{k}: {one[k]} -> {two[k]}" for k in one if one[k] != two[k]]
    _checks(a, b, d)
    for name, (x, y) in _pairs(a, b).items():
        if x and y is not None and abs(y - x) / abs(x) >= NOTEWORTHY:
            d.moved.append(f"{name}: {x:.4g} -> {y:.4g} ({(y - x) / x:+.0%})")
    return d


def _checks(a: Report, b: Report, d: Diff) -> None:
    one = {f"{c.group}/{c.name}": c for c in a.checks}
    two = {f"{c.group}/{c.name}": c for c in b.checks}
    bad = ("failed", "error")
    for name, before in one.items():
        now = two.get(name)
        if now is None:
            d.gone.append(name)
        elif now.outcome in bad and before.outcome not in bad:
            d.worse.append(f"{name}: {now.problem}")
        elif before.outcome in bad and now.outcome not in bad:
            d.better.append(f"{name}: {now.outcome}")
        elif before.outcome != now.outcome:
            line = f"{name}: {before.outcome} -> {now.outcome}"
            (d.worse if now.outcome == "not run" else d.better).append(line)
    d.new = [n for n in two if n not in one]


def _pairs(a: Report, b: Report) -> dict[str, tuple[float | None, float | None]]:
    out: dict[str, tuple[float | None, float | None]] = {}
    one, two = _numbers(a), _numbers(b)
    for name in one:
        if name in two:
            out[name] = (one[name], two[name])
    return out


def _numbers(r: Report) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for x in r.acceptance:
        out[f"acceptance {x.family} at {x.depth}"] = x.length
    for w in r.loads:
        shape = f"{w.prompt}/{w.output}@{w.concurrency}"
        out[f"tokens/s {shape}"] = w.throughput
        out[f"first token {shape}"] = w.ttft_s
    for p in r.depths:
        out[f"first token at depth {p.tokens}"] = p.ttft_s
    if r.memory:
        out["memory low-water mark (GB)"] = min(m.available for m in r.memory) / 1e9
    for boot in r.boots:
        out[f"start: {boot.name}"] = sum(p.seconds for p in boot.phases)
    return out


def render(d: Diff) -> str:
    parts = [
        ("Not the same thing was measured", d.binding),
        ("Worse", d.worse),
        ("Better", d.better),
        ("No longer there", d.gone),
        ("New", d.new),
        (f"Measurements that moved by {NOTEWORTHY:.0%} or more", d.moved),
    ]
    blocks = [f"{title}:\n" + "\n".join(f"  {line}" for line in lines) for title, lines in parts if lines]
    return "\n".join(blocks) if blocks else "No difference worth a line."
