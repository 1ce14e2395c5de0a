"""Agreement: speculation must not change what the model says. On a planted fixture the continuation is known.

The comparison with an engine without a draft is the control arm's group, which needs another boot.
"""

from __future__ import annotations

import pytest

from smoke.errors import expect
from smoke.session import Session
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
