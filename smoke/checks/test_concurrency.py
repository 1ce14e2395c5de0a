"""Concurrency: many streams at once stay text, and on a planted fixture stay exact at every batch size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from smoke.engine.client import Generation
from smoke.errors import expect
from smoke.garbage import verdict
from smoke.session import Session
from smoke.workload.prompts import FAMILIES, Prompt

MEND = (
    "state or graph padding leaks between requests: retry with disable_radix_cache, then with "
    "cuda_graph_max_bs_decode = 1; each that helps names the culprit"
)


def _together(s: Session, prompts: list[Prompt], tokens: int) -> list[Generation]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda p: s.engine.generate(list(p.ids), tokens), prompts))


def _prompts(s: Session, n: int, salt: int) -> list[Prompt]:
    longest = max(64, min(1024, s.context // 8))
    sizes = [longest // (1 + i % 3) for i in range(n)]
    return [s.prompt(FAMILIES[i % len(FAMILIES)], size, salt + i) for i, size in enumerate(sizes)]


def test_no_garbage(s: Session) -> None:
    """Streams that run at once produce text, not garbage"""
    n = min(s.profile.garbage_streams, s.streams * 2)
    tokens = min(s.profile.garbage_tokens, max(16, s.context // 8))
    for wave in range(2):  # the second wave meets used slots and a filled prefix cache
        bad = []
        for p, g in zip(_prompts(s, n, 200), _together(s, _prompts(s, n, 200), tokens), strict=True):
            if why := verdict(g.text, g.ids, period_ok=16 if s.subject.planted else 0):
                bad.append(f"{p.family}: {why}")
        expect("garbage.text", not bad, f"wave {wave + 1}, {n} streams: {'; '.join(bad)}", MEND)


@pytest.mark.needs("planted")
def test_every_batch_size(s: Session) -> None:
    """Every number of streams gives exactly the planted output"""
    oracle = s.oracle
    for n in range(1, s.streams + 1):
        prompts = [s.prompt(FAMILIES[i % 4], 24 + 7 * i, 300 + i) for i in range(n)]
        wrong = [
            i
            for i, (p, g) in enumerate(zip(prompts, _together(s, prompts, 20), strict=True))
            if g.ids != oracle.walk(p.ids[-1], 20)
        ]
        expect("garbage.batch", not wrong, f"with {n} streams, number {wrong} left the planted output", MEND)


def test_alone_and_together(s: Session) -> None:
    """A greedy request begins the same alone and in company"""
    prompts = _prompts(s, min(4, s.streams), 400)
    alone = [s.engine.generate(list(p.ids), 8).ids[:1] for p in prompts]
    together = [g.ids[:1] for g in _together(s, prompts, 8)]
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    # The first token comes from the prefill; one tie in four may turn.
    expect(
        "garbage.company",
        same >= 0.75 * len(prompts),
        f"only {same} of {len(prompts)} requests begin with the same token in company",
        MEND,
    )
