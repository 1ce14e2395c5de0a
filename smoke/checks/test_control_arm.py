"""Control arm: the same target without a draft must say the same, and be as sure of it.

Tokens: exact on planted fixtures; elsewhere a share of prompts, because the batch shape of a verification moves ties.
Log-probabilities see more: a step that keeps the wrong recurrent state, or an old one, leaves a planted text as it is
and moves every probability after it. They are compared over the tokens that both arms chose alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from smoke.engine.client import Engine
from smoke.errors import expect
from smoke.oracle import gaps
from smoke.session import Session
from smoke.targets import Boot
from smoke.workload.prompts import FAMILIES, Prompt

pytestmark = [pytest.mark.needs("preset", "speculative"), pytest.mark.profile("full")]

PER_FAMILY = 4


@dataclass(frozen=True)
class Answer:
    """Greedy tokens and the natural-log probability of each."""

    ids: list[int]
    logprobs: list[float]


def _prompts(s: Session) -> list[Prompt]:
    return [s.prompt(f, 48 + 16 * i, salt=100 + i) for f in FAMILIES for i in range(PER_FAMILY)]


def _ask(engine: Engine, prompts: list[Prompt], tokens: int, long: int) -> list[Answer]:
    """`tokens` of each prompt, `long` of the first of each family."""
    out = []
    for i, p in enumerate(prompts):
        n = max(tokens, long) if i % PER_FAMILY == 0 else tokens
        rows = engine.generate(list(p.ids), n, return_logprob=True).meta.get("output_token_logprobs") or []
        out.append(Answer([r[1] for r in rows], [float(r[0]) for r in rows]))
    return out


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_control_arm(s: Session) -> None:
    """Greedy output and its log-probabilities agree with the same target without a draft"""
    prompts, n = _prompts(s), s.subject.agreement_tokens
    long = min(s.profile.accept_tokens, s.context // 4)
    ours = _ask(s.engine, prompts, n, long)
    if s.control_url:
        control = Engine(s.control_url, s.target.api_key, s.engine.model, s.profile.request_s)
        theirs = _ask(control, prompts, n, long)
        control.close()
    else:
        s.need(s.subject.control, "the preset names no control arm (smoke.control)", matters=True)
        s.need(s.target.owns, "the control arm needs a second server: pass --control-url", matters=True)
        try:
            s.start(Boot(control=s.subject.control), "control arm")
            theirs = _ask(s.engine, prompts, n, long)
        finally:
            s.down = "after the control arm"
    same = sum(a.ids[:n] == b.ids[:n] for a, b in zip(ours, theirs, strict=True))
    need = 1.0 if s.subject.planted else s.subject.agreement_min
    s.rec.note(f"greedy agreement with the control arm: {same} of {len(prompts)} prompts over {n} tokens")
    expect(
        "control.tokens",
        same >= need * len(prompts),
        f"{same} of {len(prompts)} prompts agree over {n} tokens, at least {need:.0%} should",
        "ties explain a few; more means that verification or state handling is wrong: try one stream, then no graph",
    )
    a, b = [], []
    for x, y in zip(ours, theirs, strict=True):
        k = _common(x.ids, y.ids)
        a, b = a + x.logprobs[:k], b + y.logprobs[:k]
    mean, most = gaps(a, b)
    allowed = s.subject.agreement_logprob
    s.rec.note(
        f"log-probabilities against the control arm: mean |d| {mean:.5f}, max |d| {most:.4f} nats, {len(a)} tokens"
    )
    expect(
        "control.logprobs",
        mean <= allowed,
        f"mean difference {mean:.4f} nats over {len(a)} tokens, allowed {allowed:g}: the text may still look right",
        "the draft's steps leave another state than plain decoding does: recurrent state, KV or position after a "
        "partly accepted block",
    )
