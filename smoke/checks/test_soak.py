"""Soak: hours of ordinary work. Memory must not creep, acceptance must not decay, text must stay text."""

from __future__ import annotations

import itertools
import statistics
import time

import pytest

from smoke.drift import trend
from smoke.errors import expect
from smoke.garbage import verdict
from smoke.session import Session
from smoke.workload import load
from smoke.workload.prompts import FAMILIES

pytestmark = pytest.mark.profile("soak")


def test_hours(s: Session) -> None:
    """Acceptance and text hold over the soak's length"""
    begun = time.monotonic()
    s.memo["soak from"] = f"{s.rec.clock() - s.rec.begun:.2f}"
    accepted: list[tuple[float, float]] = []
    bad: list[str] = []
    for i in itertools.count():
        now = time.monotonic() - begun
        if now >= s.profile.soak_s and i >= 4:
            break
        n = 1 + i % s.streams
        prompts = [
            s.prompt(FAMILIES[(i + k) % 4], 32 + (i * 37 + k * 11) % 400, 5000 + i * 8 + k) for k in range(n)
        ]
        r = load.run(s.engine, prompts, 64, s.profile.request_s)
        bad += list(r.errors)
        bad += [w for x in r.samples if (w := verdict("", x.ids, 16 if s.subject.planted else 0))]
        if (used := s.target.memory_used()) is not None:
            s.own_memory.append((now / 3600, float(used)))
        if r.accept_length is not None:
            accepted.append((now, r.accept_length))
        expect(
            "soak.text",
            not bad,
            f"after {now:.0f} s: {bad[:2]}",
            "read the log around this time; restart nightly until fixed",
        )
    if len(accepted) >= 4:
        quarter = len(accepted) // 4
        first = statistics.fmean(a for _, a in accepted[:quarter])
        last = statistics.fmean(a for _, a in accepted[-quarter:])
        expect(
            "soak.acceptance",
            last >= 0.8 * first,
            f"acceptance fell from {first:.2f} to {last:.2f}",
            "a known decay with uptime (sglang #37326): schedule a restart",
        )


def test_memory(s: Session) -> None:
    """Host memory does not creep over the soak's length"""
    begun = s.memo.get("soak from")
    s.need(begun, "the soak itself did not run", matters=True)
    end = time.monotonic() + 5
    while not (points := _soaked(s, float(begun or 0))) and time.monotonic() < end:
        time.sleep(s.limits.poll_s)
    host = trend(points)
    s.need(host, "the target does not tell the host's memory, or the soak was too short", matters=True)
    assert host
    own = trend(s.own_memory[len(s.own_memory) // 10 :])
    limit, loss, margin = s.limits.soak_slope, -host.slope, host.margin
    grows = "unknown" if own is None else f"{own.slope / 1e6:+.0f} MB (give or take {own.margin / 1e6:.0f})"
    told = f"host memory {-loss / 1e6:+.0f} MB an hour (give or take {margin / 1e6:.0f}), the engine's own {grows}"
    s.rec.note(f"soak: {told}, {len(points)} samples")
    # A neighbour's memory is not the engine's doing, where the engine's own can be told.
    rate, sure = (own.slope, own.slope - own.margin) if own else (loss, loss - margin)
    hours = points[-1][0] - points[0][0]
    creeps = sure > limit
    expect(
        "soak.memory",
        not (creeps and rate * hours > s.limits.soak_least),
        told,
        "find the process that grows; until then restart before the reserve is gone",
    )
    s.need(
        not creeps,
        f"{told}: {rate * hours / 1e6:.0f} MB in {hours * 60:.0f} minutes cannot be told from caches that warm up: soak longer",
        matters=True,
    )
    s.need(
        loss + margin <= limit,
        f"{told}: this is not surely below the {limit / 1e6:.0f} MB that may go. If nothing else ran here, the driver "
        "takes it; else soak longer, or on a machine of its own",
        matters=True,
    )


def _soaked(s: Session, begun: float) -> list[tuple[float, float]]:
    """(hour, bytes) of the soak without its first tenth, which warms caches up; empty for fewer than 12 samples."""
    since = [p for p in s.rec.memory if p.at >= begun]
    warm = since[len(since) // 10 :]
    return [(p.at / 3600, float(p.available)) for p in warm] if len(warm) >= 12 else []
