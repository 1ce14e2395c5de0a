"""Prompts are deterministic and exact in tokens; workloads count what the engine counts; garbage is told from text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoke.engine.client import Engine
from smoke.garbage import verdict
from smoke.mock.boot import CONTEXT
from smoke.mock.model import Tokenizer
from smoke.mock.state import State
from smoke.mock.target import MockServer
from smoke.profiles import FULL, QUICK, Load, depths, fit
from smoke.workload import load
from smoke.workload.prompts import FAMILIES, make, needle
from smoke.workload.texts import STREAMS, text


@pytest.fixture
def mock() -> Iterator[MockServer]:
    server = MockServer(State(armed=True))
    yield server
    server.close()


@given(family=st.sampled_from(FAMILIES), seed=st.integers(0, 99), length=st.integers(1, 700))
@settings(max_examples=60, deadline=None)
def test_a_prompt_is_exactly_as_long_as_asked(family: str, seed: int, length: int) -> None:
    tokenizer = Tokenizer()
    p = make(family, seed, length, tokenizer.encode)
    assert len(p) == length
    assert p == make(family, seed, length, tokenizer.encode)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_deterministic_and_seeded(family: str) -> None:
    assert text(family, 1, 500) == text(family, 1, 500) != text(family, 2, 500)
    assert len(text(family, 1, 50_000)) >= 50_000
    assert verdict(text(family, 1, 2000)) is None


def test_families_do_not_repeat_themselves_at_once() -> None:
    for family in STREAMS:
        lines = [ln for ln in text(family, 3, 4000).splitlines() if len(ln) > 60]
        assert len(set(lines)) > 0.5 * len(lines)


def test_the_seed_workloads_are_all_there() -> None:
    want = {(p, o, c) for p, o in ((1000, 1000), (50_000, 400), (97_000, 3000)) for c in (1, 4, 8)}
    assert {(w.prompt, w.output, w.concurrency) for w in FULL.loads} == want
    assert FULL.three_at_once == 250_000


@given(
    w=st.sampled_from(FULL.loads + QUICK.loads),
    context=st.integers(256, 300_000),
    pool=st.one_of(st.none(), st.integers(4096, 900_000)),
)
def test_a_scaled_workload_fits(w: Load, context: int, pool: int | None) -> None:
    s = fit(w, context, pool)
    limit = context if pool is None else min(context, pool // w.concurrency)
    assert s == w or s.prompt + s.output <= max(limit, 32)
    assert s.concurrency == w.concurrency
    assert min(s.prompt, s.output) > 0


def test_a_real_preset_is_not_scaled() -> None:
    assert all(fit(w, 262_144, 827_041) == w for w in FULL.loads)
    assert depths(FULL, 262_144, 827_041) == FULL.depths


def test_depths_scale_to_the_context() -> None:
    for profile in (QUICK, FULL):
        d = depths(profile, 4096, 16_384)
        assert len(d) >= 3
        assert 3900 < max(d) < 4096
        assert list(d) == sorted(set(d))


@pytest.mark.parametrize("place", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_needle_lies_where_it_should(place: float) -> None:
    n = needle(1, place, 8000)
    hay = n.text.partition("\n\nWhat is")[0]
    assert hay.count(n.answer) == 1
    assert abs(hay.index(n.answer) / len(hay) - place) < 0.05
    assert n.text.endswith("only.")


def test_a_load_counts_the_engines_tokens(mock: MockServer) -> None:
    engine = Engine(mock.url, model="mock")
    prompts = [make("code", i, 100, engine.tokenize) for i in range(4)]
    r = load.run(engine, prompts, 40, 10.0)
    engine.close()
    assert (r.made, len(r.samples), r.errors) == (160, 4, ())
    assert {s.prompt for s in r.samples} == {100}
    assert r.accept_length == 8.0
    assert r.ttft is not None
    assert r.latency is not None
    assert 0 < r.ttft <= r.latency <= r.seconds


def test_one_failing_request_does_not_hide_the_others(mock: MockServer) -> None:
    engine = Engine(mock.url, model="mock")
    good, long = (make("code", 1, n, engine.tokenize) for n in (50, CONTEXT + 10))
    r = load.run(engine, [good, long, good], 16, 10.0)
    engine.close()
    assert len(r.samples) == 2
    assert len(r.errors) == 1
    assert str(CONTEXT) in r.errors[0]


GARBAGE = {
    "!" * 40: "makes up",
    "\ufffd" * 10 + "text": "replacement",
    "a\x00b\x01c\x02d": "control",
    "#$%^&*()_+{}|:<>?~`-=[];',./" * 4: "letters",
}


@pytest.mark.parametrize(("bad", "why"), GARBAGE.items())
def test_garbage_is_found(bad: str, why: str) -> None:
    found = verdict(bad)
    assert found is not None
    assert why in found


def test_loops_are_found_and_planted_cycles_are_not() -> None:
    assert "loops" in str(verdict("", [1, 2, 3] * 20))
    assert "makes up" in str(verdict("", [0] * 40))
    cycle = list(range(16)) * 6
    assert verdict("", cycle, period_ok=16) is None
    assert verdict("", cycle) is None
    assert "loops" in str(verdict("", [1, 2] * 30, period_ok=16))


@pytest.mark.parametrize("good", ["", "Hello! How can I help you today?", '{"id": 1, "a": [1, 2, 3]}', "42"])
def test_text_is_not_garbage(good: str) -> None:
    assert verdict(good) is None
