"""Agreement: speculation must not change what the model says.

Exact on planted fixtures, whose continuation is known. Elsewhere within a tolerance, because the batch shape of a
verification moves ties: the share of prompts whose first tokens equal those of the control arm without a draft.
"""

from __future__ import annotations

import pytest

from smoke.engine.client import Engine
from smoke.errors import expect
from smoke.session import Session, revive
from smoke.targets import Boot
from smoke.workload.prompts import FAMILIES, Prompt

PER_FAMILY = 4


def _prompts(s: Session) -> list[Prompt]:
    return [s.prompt(f, 48 + 16 * i, salt=100 + i) for f in FAMILIES for i in range(PER_FAMILY)]


@pytest.mark.needs("planted")
def test_planted_exact(s: Session) -> None:
    """Greedy output follows the planted cycle exactly, for every family"""
    oracle = s.oracle
    for p in _prompts(s):
        ids = s.engine.generate(list(p.ids), 24).ids
        want = oracle.walk(p.ids[-1], 24)
        wrong = next((i for i, (a, b) in enumerate(zip(ids, want, strict=False)) if a != b), None)
        expect(
            "agree.planted",
            ids == want,
            f"family {p.family}: {len(ids)} tokens, the first wrong one at {wrong}",
            "the verification commits tokens that the target did not choose",
        )


@pytest.mark.needs("preset", "speculative")
@pytest.mark.profile("full")
def test_control_arm(s: Session) -> None:
    """Greedy output agrees with the same target without a draft"""
    prompts, n = _prompts(s), s.subject.agreement_tokens
    ours = [s.engine.generate(list(p.ids), n).ids for p in prompts]
    if s.control_url:
        control = Engine(s.control_url, s.target.api_key, s.engine.model, s.profile.request_s)
        theirs = [control.generate(list(p.ids), n).ids for p in prompts]
        control.close()
    else:
        s.need(s.subject.control, "the preset names no control arm (smoke.control)", matters=True)
        s.need(s.target.owns, "the control arm needs a second server: pass --control-url", matters=True)
        s.start(Boot(control=s.subject.control), "control arm")
        try:
            theirs = [s.engine.generate(list(p.ids), n).ids for p in prompts]
        finally:
            revive(s, "after the control arm")
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    need = 1.0 if s.subject.planted else s.subject.agreement_min
    s.rec.note(f"greedy agreement with the control arm: {same} of {len(prompts)} prompts over {n} tokens")
    expect(
        "agree.control",
        same >= need * len(prompts),
        f"{same} of {len(prompts)} prompts agree over {n} tokens, at least {need:.0%} should",
        "ties explain a few; more means that verification or state handling is wrong: try one stream, then no graph",
    )
