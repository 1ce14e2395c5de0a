"""Acceptance: the draft is worth its memory, for each kind of text, and stays so with depth.

Read from meta_info of /generate: the gauge sglang:spec_accept_length still reads 0.0 after a few short requests.
"""

from __future__ import annotations

import statistics

import pytest

from smoke.errors import expect
from smoke.session import Session
from smoke.workload.prompts import FAMILIES

pytestmark = pytest.mark.needs("speculative")

MEND = (
    "near 1.0 the draft is loaded wrongly (quantization declared wrong, or the wrong draft); "
    "somewhat low is the content: prose accepts less than code"
)


def _room(s: Session) -> tuple[int, int]:
    """(prompt, answer) lengths that fit."""
    tokens = min(s.profile.accept_tokens, max(16, s.context // 4))
    return min(200, s.context // 4), tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_by_family(s: Session, family: str) -> None:
    """Accepted tokens per step reach the preset's floor"""
    length, tokens = _room(s)
    values = []
    for salt in (0, 1, 2):
        g = s.engine.generate(list(s.prompt(family, length, salt).ids), tokens)
        value = g.meta.get("spec_accept_length")
        expect(
            "accept.reported",
            value is not None,
            "meta_info of /generate has no spec_accept_length",
            "is speculation on? Compare speculative_algorithm in /server_info",
        )
        values.append(float(value or 0))
    mean, floor = statistics.fmean(values), s.subject.accept_length_min
    s.rec.accept(family, length, mean, 3 * tokens, floor)
    # Without a floor: a draft that adds less than 5 % is broken, whatever the text.
    expect(
        "accept.floor",
        mean >= (floor or 1.05),
        f"{mean:.2f} accepted per step, at least {floor or 1.05} should be",
        MEND,
    )


@pytest.mark.needs("planted")
def test_planted_length(s: Session) -> None:
    """A planted draft is accepted exactly as often as it was planted"""
    want = s.subject.accept_length
    s.need(want, "the preset names no exact acceptance")
    assert want is not None
    steps = 8
    # The prefill makes the first token; whole blocks after it.
    g = s.engine.generate(list(s.prompt("chat", 32).ids), int(want * steps))
    have = float(g.meta.get("spec_accept_length") or 0)
    expect(
        "accept.planted",
        abs(have - want) <= want / steps + 0.01,
        f"{have:.2f} accepted per step, planted are {want}",
        "selector, convolution, block attention or context features are wrong (smoke/fixtures/README.md, fault table)",
    )


@pytest.mark.profile("full")
def test_with_depth(s: Session) -> None:
    """Acceptance does not decay with the context's depth"""
    _, tokens = _room(s)
    limit = min(s.context, s.pool or s.context) - tokens - 16
    depths = sorted({max(64, limit * i // 8) for i in (1, 4, 8)})
    seen = []
    for depth in depths:
        g = s.engine.generate(list(s.prompt("code", depth, salt=7).ids), tokens, timeout=s.profile.request_s)
        seen.append(float(g.meta.get("spec_accept_length") or 0))
        s.rec.accept("code", depth, seen[-1], tokens, None)
    expect(
        "accept.depth",
        seen[-1] >= 0.6 * seen[0],
        f"acceptance falls from {seen[0]:.2f} at {depths[0]} to {seen[-1]:.2f} at {depths[-1]} tokens",
        "the draft loses its context: check the draft window and that no RoPE scaling reaches the draft",
    )
