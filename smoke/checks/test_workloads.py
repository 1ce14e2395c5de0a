"""Workloads: the sizes that this pair is asked to carry, each answered in full; their speed is recorded, not judged."""

from __future__ import annotations

import pytest

from smoke.errors import expect
from smoke.profiles import PROFILES, Load, fit
from smoke.session import Session
from smoke.workload import load

FAMILY = "code"
_QUICK = PROFILES["quick"].loads
_FULL = [w for w in PROFILES["full"].loads if w not in _QUICK]
_PARAMS = [
    *(pytest.param(w, id=w.slug) for w in _QUICK),
    *(pytest.param(w, id=w.slug, marks=pytest.mark.profile("full")) for w in _FULL),
]


@pytest.mark.parametrize("asked", _PARAMS)
def test_workload(s: Session, asked: Load) -> None:
    """Prompt/output@streams: every stream gets all its tokens"""
    w = fit(asked, s.context, s.pool)
    if w != asked:
        s.rec.note(f"workload {asked.name} was scaled to {w.name} (context {s.context}, pool {s.pool})")
    prompts = [s.prompt(FAMILY, w.prompt, salt=700 + i) for i in range(w.concurrency)]
    r = load.run(s.engine, prompts, w.output, s.profile.request_s)
    s.rec.load(FAMILY, asked.name, w.prompt, w.output, r=r, concurrency=w.concurrency)
    expect(
        "load.errors",
        not r.errors,
        f"{len(r.errors)} of {w.concurrency} requests failed: {r.errors[:1]}",
        "the log says whether memory, a deadline or the engine gave out",
    )
    short = [(x.prompt, x.made) for x in r.samples if x.made != w.output or x.prompt != w.prompt]
    expect(
        "load.tokens",
        not short,
        f"asked {w.prompt}/{w.output} with ignore_eos, got {short[:3]} (prompt, made)",
        "tokens are lost or counted wrongly: no speed of this server can be believed",
    )
