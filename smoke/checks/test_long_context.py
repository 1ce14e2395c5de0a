"""Long context: needles at five depths, the prefix cache, and three very long prompts at once."""

from __future__ import annotations

import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.profiles import depths
from smoke.session import Session
from smoke.workload import load
from smoke.workload.prompts import needle

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.needs("capable")
@pytest.mark.parametrize("place", PLACES, ids=[f"{p:.0%}" for p in PLACES])
def test_needle(s: Session, place: float) -> None:
    """A fact in a long text is found"""
    length = depths(s.profile, s.context, s.pool)[-1]
    per_token = 4000 / max(1, len(s.engine.tokenize(needle(s.seed, 0.5, 4000).text)))
    n = needle(s.seed, place, int((length - 256) * per_token * 0.9))
    d = s.engine.chat(n.text, max_tokens=48, **NO_THINK)
    text = d["choices"][0]["message"].get("content") or ""
    expect(
        "long.needle",
        n.answer in text,
        f"{d['usage']['prompt_tokens']} tokens, needle at {place:.0%}: got {text[:80]!r}, should hold {n.answer}",
        "retrieval broken at one depth only: suspect chunked prefill or the sliding window; at all: RoPE scaling",
    )


def test_depths(s: Session) -> None:
    """Time to the first token is measured at each depth, and long prompts are counted in full"""
    for length in depths(s.profile, s.context, s.pool):
        p = s.prompt("prose", length, salt=500 + length)
        first = load.one(s.engine, p, 16, s.profile.request_s)
        expect(
            "long.counted",
            first.prompt == length,
            f"a prompt of {length} tokens was counted as {first.prompt}",
            "the engine truncates or adds tokens: keep allow_auto_truncate off",
        )
        again = load.one(s.engine, p, 16, s.profile.request_s)
        s.rec.depth(length, first.ttft, again.ttft, again.cached, first.accept_length)


@pytest.mark.needs("gpu")
def test_prefix_cache(s: Session) -> None:
    """The same long prompt is taken from the prefix cache the second time"""
    s.need(not s.subject.engine.get("disable_radix_cache"), "the preset switches the prefix cache off")
    # A hybrid model's state is kept at multiples of 64 tokens, and a hit must leave one token to compute: of a prompt of
    # exactly 2048 tokens nothing is taken (seen on an H200: 0 of 2048, 8128 of 8172, 24576 of 32768 in chunks of 8192).
    length = min(2048, depths(s.profile, s.context, s.pool)[-1]) // 64 * 64 - 11
    p = s.prompt("prose", length, salt=900)
    load.one(s.engine, p, 4, s.profile.request_s)
    again = load.one(s.engine, p, 4, s.profile.request_s)
    expect(
        "long.cached",
        again.cached >= length // 2,
        f"{again.cached} of {length} tokens came from the cache",
        "hybrid models need mamba_radix_cache_strategy extra_buffer (or lazy) for a prefix hit",
    )


@pytest.mark.profile("full")
def test_three_at_once(s: Session) -> None:
    """Three very long prompts at once are answered"""
    want = s.profile.three_at_once
    room = min(s.context - 64, (s.pool or 3 * s.context) // 3 - 64)
    length = min(want, room)
    if length < want:
        s.rec.note(f"three prompts at once were scaled from {want} to {length} tokens (context, pool)")
    r = load.run(s.engine, [s.prompt("prose", length, 600 + i) for i in range(3)], 32, s.profile.request_s)
    s.rec.load("prose", f"{want}/32@3", length, 32, r=r, concurrency=3)
    made = [x.made for x in r.samples]
    expect(
        "long.three",
        not r.errors and made == [32] * 3,
        f"three prompts of {length} tokens: {made} tokens, {r.errors}",
        "watch the memory guard and the pool: lower chunked_prefill_size or max_running_requests",
    )
