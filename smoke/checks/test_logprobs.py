"""Log-probabilities: well-formed under speculation, and on a planted fixture equal to the reference.

Text and acceptance stay right when a scale is wrong by a factor of two; only this group sees it.
"""

from __future__ import annotations

import math

import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.oracle import gaps
from smoke.session import Session


def test_chat_logprobs(s: Session) -> None:
    """Chat log-probabilities come for every token, sorted and below zero"""
    c = s.engine.chat("Hello", logprobs=True, top_logprobs=3, max_tokens=6, ignore_eos=True, **NO_THINK)[
        "choices"
    ][0]
    content = (c.get("logprobs") or {}).get("content") or []
    expect(
        "logprobs.count",
        len(content) == 6,
        f"6 tokens were made, {len(content)} have log-probabilities",
        "log-probabilities under DFLASH came with #33459: check the engine version",
    )
    bad = [
        t
        for t in content
        if not (
            math.isfinite(t["logprob"]) and t["logprob"] <= 1e-4 and len(t.get("top_logprobs") or []) == 3
        )
    ]
    expect(
        "logprobs.shape",
        not bad,
        f"{len(bad)} of 6 are positive, not finite or lack their 3 alternatives: {bad[:1]}",
        "NaN here means a broken head or scale",
    )
    first = [t["top_logprobs"][0]["token"] == t["token"] for t in content]
    expect(
        "logprobs.greedy",
        all(first),
        "a greedy token is not its own most likely alternative",
        "log-probabilities belong to another position: an off-by-one in the verified block",
    )


@pytest.mark.needs("planted")
def test_reference(s: Session) -> None:
    """Log-probabilities of the fixture equal the reference of the packed checkpoint"""
    oracle = s.oracle
    means, worst = [], 0.0
    for ref in oracle.references:
        g = s.engine.generate(list(ref.input_ids), len(ref.output_ids), return_logprob=True)
        rows = g.meta.get("output_token_logprobs") or []
        ids, values = [r[1] for r in rows], [r[0] for r in rows]
        expect(
            "logprobs.tokens",
            ids == list(ref.output_ids),
            f"prompt {ref.name!r}: tokens {ids[:6]}..., the reference has {list(ref.output_ids)[:6]}...",
            "packing or head is read wrongly: every greedy answer will be wrong",
        )
        mean, most = gaps(values, ref.logprobs)
        means.append(mean)
        worst = max(worst, most)
    mean = sum(means) / len(means)
    s.rec.note(f"log-probabilities against the reference: mean |d| {mean:.4f}, max |d| {worst:.4f} nats")
    expect(
        "logprobs.mean",
        mean <= oracle.mean_abs,
        f"mean difference {mean:.4f} nats, allowed {oracle.mean_abs}: text may still look right",
        "a scale or an inner layer is wrong: compare weight_scale, weight_scale_2 and input_scale handling",
    )
    expect(
        "logprobs.max",
        worst <= oracle.max_abs,
        f"largest difference {worst:.4f} nats, allowed {oracle.max_abs}",
        "single tokens are off: look for a padded or shifted row",
    )
