"""From recorded timings to a choice. Pure.

A candidate of a role costs, at a row count, the sum over the role's layers of count x median time. It is compared with what
the preset does today by the geometric mean of the ratios over the row counts. It wins only when that mean is faster than
noise: more than MARGIN and more than the quartile spread of both sides. Otherwise today's choice stays.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.gemms import Gemm
from launch.tune.work import COPY, FORMATS, Candidate, Item

MARGIN = 0.02  # closer than this is a tie


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `share` is achieved over copy bandwidth (None without a copy measurement)."""

    key: str
    candidate: str
    us: float | None
    spread: float | None
    share: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a role is served with, and why. `speedup` is over today's choice, 1.0 when that stays."""

    role: str
    chosen: Candidate
    today: Candidate
    speedup: float
    why: str


def median(record: Mapping[str, Any]) -> float | None:
    """Median of a finished measurement in microseconds; None for a failed one."""
    return float(statistics.median(record["us"])) if record.get("us") else None


def spread(record: Mapping[str, Any]) -> float:
    """Interquartile range over the median: what two runs may differ by."""
    us = record.get("us") or []
    if len(us) < 4:
        return 0.0
    low, mid, high = statistics.quantiles(us, n=4)
    return float((high - low) / mid)


def bandwidth(records: Mapping[str, Mapping[str, Any]], size: int) -> float | None:
    """Measured copy bandwidth in bytes/s: a copy of `size` bytes reads and writes them."""
    record = records.get(f"{COPY}/device")
    us = median(record) if record else None
    return 2 * size / (us * 1e-6) if us else None


def table(items: Sequence[Item], records: Mapping[str, Mapping[str, Any]], peak: float | None) -> list[Row]:
    """A row for each measurement, also for failed and missing ones."""
    rows = []
    for item in items:
        if item.gemm is None:
            continue
        record = records.get(item.key, {})
        us = median(record)
        share = item.gemm.bytes(item.rows) / (us * 1e-6) / peak if us and peak else None
        error = record.get("error") or (None if us else "not measured")
        rows.append(Row(item.key, item.candidate.name, us, spread(record) if us else None, share, error))
    return rows


def judge(
    items: Sequence[Item], records: Mapping[str, Mapping[str, Any]], gemms: Sequence[Gemm]
) -> tuple[Verdict, ...]:
    """The choice of each role. A candidate with a missing or failed shape is out; so is everything when today's is."""
    out = []
    for role, form in FORMATS.items():
        mine = [i for i in items if i.candidate.role == role]
        if not mine:
            continue
        today = mine[0].candidate
        layers = [g for g in gemms if g.format in form]
        costs = {
            c.name: _costs(c, mine, records, layers)
            for c in {i.candidate.name: i.candidate for i in mine}.values()
        }
        by_name = {i.candidate.name: i.candidate for i in mine}
        base = costs[today.name]
        if base is None:
            out.append(
                Verdict(
                    role, today, today, 1.0, f"{today.name} was not measured whole: nothing to compare with"
                )
            )
            continue
        best, gain, why = today, 1.0, "nothing else was measured whole"
        for name, cost in costs.items():
            if name == today.name or cost is None or not by_name[name].eligible:
                continue
            ratio = math.exp(statistics.fmean(math.log(base[m][0] / cost[m][0]) for m in base))
            noise = max(MARGIN, *(base[m][1] + cost[m][1] for m in base))
            if ratio > max(gain, 1 + noise):
                best, gain, why = by_name[name], ratio, f"{ratio:.2f}x {today.name}, noise {noise:.1%}"
            elif best is today:
                why = "no other is faster than noise"
        out.append(Verdict(role, best, today, gain, why))
    return tuple(out)


def _costs(
    c: Candidate, items: Sequence[Item], records: Mapping[str, Mapping[str, Any]], layers: Sequence[Gemm]
) -> dict[int, tuple[float, float]] | None:
    """rows -> (microseconds a step, relative spread); None when any shape is missing."""
    count = {(g.n, g.k, g.format): 0 for g in layers}
    for g in layers:
        count[g.n, g.k, g.format] += g.count
    total: dict[int, list[tuple[float, float]]] = {}
    for item in items:
        if item.candidate != c or item.gemm is None:
            continue
        record = records.get(item.key, {})
        us = median(record)
        if us is None:
            return None
        cost = us * count[item.gemm.n, item.gemm.k, item.gemm.format]
        total.setdefault(item.rows, []).append((cost, cost * spread(record)))
    return {m: (sum(t for t, _ in v), sum(s for _, s in v) / sum(t for t, _ in v)) for m, v in total.items()}


def settings(verdicts: Sequence[Verdict]) -> tuple[dict[str, Any], dict[str, str]]:
    """(engine keys, environment) that serve the verdicts; only what differs from today."""
    engine: dict[str, Any] = {}
    env: dict[str, str] = {}
    for v in verdicts:
        if v.chosen == v.today:
            continue
        if v.role == "fp4":
            if v.chosen.option != v.today.option:
                engine["fp4_gemm_backend"] = v.chosen.option
            if v.chosen.autotune != v.today.autotune:
                engine["disable_flashinfer_autotune"] = not v.chosen.autotune
        env |= v.chosen.env
    return engine, env
