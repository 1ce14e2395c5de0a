"""What the engine clamps in silence is an error; what the plan foresaw is not."""

import pytest

from launch.realised import GIB, Realised, compare, compare_free, read, with_log

INFO = {
    "max_running_requests": 8,
    "context_length": 262144,
    "max_total_num_tokens": 5,
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 8,
            "memory_usage": {"token_capacity": 700_000, "kvcache": 25.0},
        }
    ],
}


def test_reads_the_engines_words():
    assert read(INFO) == Realised(700_000, 8, 8, None, 262144)
    assert read({}) == read({"internal_states": "no"}) == read({"internal_states": [{"memory_usage": 3}]})
    assert read({}) == Realised()
    assert read({"max_total_num_tokens": 77}).pool_tokens == 77


def check(seen, engine, pool=700_000, running=8, real=True):
    return compare(seen, engine, pool_tokens=pool, running=running, sized_by_plan=real)


@pytest.mark.parametrize(
    ("seen", "engine", "plan", "word"),
    [
        (Realised(700_000, 8), {"max_running_requests": 8}, {}, None),
        (Realised(631_000, 8), {}, {}, None),  # within the tolerance
        (Realised(629_000, 8), {}, {}, "10% below the planned 700,000"),
        (Realised(700_000, 7), {"max_running_requests": 8}, {}, "7 requests at once instead of 8"),
        (Realised(700_000, 6), {"max_running_requests": 8}, {"running": 6}, None),  # the plan said so
        (Realised(700_000, 5), {"max_running_requests": 8}, {"running": 6}, "instead of 6"),
        (Realised(700_000, 5), {}, {"running": 6}, "instead of 6"),
        (Realised(700_000, 8, context=4096), {"context_length": 8192}, {}, "context of 4,096"),
        (
            Realised(700_000, 8, state_slots=10),
            {"max_mamba_cache_size": 32},
            {},
            "10 state slots instead of 32",
        ),
        # A fixture is held to what it sets itself.
        (Realised(16_384, 8), {"max_total_tokens": 16_384}, {"real": False, "pool": None}, None),
        (Realised(8_192, 8), {"max_total_tokens": 16_384}, {"real": False}, "8,192 tokens instead of"),
        (Realised(5, 5), {}, {"real": False}, None),
        # The plan itself was below max_total_tokens.
        (Realised(700_000, 8), {"max_total_tokens": 900_000}, {}, None),
        (Realised(500_000, 8), {"max_total_tokens": 900_000}, {}, "below the planned"),
    ],
)
def test_clamping(seen, engine, plan, word):
    errors, _ = check(seen, engine, **plan)
    assert bool(errors) is (word is not None)
    if word:
        assert word in errors[0]


def test_what_is_not_said_is_a_note_not_a_pass_in_silence():
    errors, notes = check(Realised(), {})
    assert errors == []
    assert len(notes) == 2


def test_larger_than_planned_is_told():
    _, notes = check(Realised(800_000, 8), {})
    assert "larger than the planned" in notes[0]


SLOTS = "[2026-12-01 03:59:47] Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: 0.00GB, ssm_state"


def test_slots_are_those_the_log_says_were_made():
    """/server_info repeats the argument; the line is from an H200."""
    asked = read({"internal_states": [{"max_mamba_cache_size": 96}]})
    assert asked.state_slots == 96
    assert with_log(asked, SLOTS.format(96)) == asked
    assert with_log(asked, SLOTS.format(48)).state_slots == 48
    assert with_log(asked, "no such line") == asked


@pytest.mark.parametrize(
    ("made", "engine", "real", "word"),
    [
        (392, {}, True, None),
        (353, {}, True, None),  # within the tolerance
        (352, {}, True, "352 state slots, more than 10% below the planned 392"),
        (352, {}, False, None),  # a fixture is held to what it sets itself
        (47, {"max_mamba_cache_size": 48}, True, "47 state slots instead of 48"),
        (48, {"max_mamba_cache_size": 48}, True, None),  # what was asked for, whatever the plan says
    ],
)
def test_clamped_slots(made, engine, real, word):
    errors, _ = compare(
        Realised(700_000, 8, state_slots=made),
        engine,
        pool_tokens=None,
        running=None,
        slots=392,
        sized_by_plan=real,
    )
    assert bool(errors) is (word is not None)
    assert word is None or word in errors[0]


def test_slots_that_are_not_said_are_a_note():
    _, notes = compare(
        Realised(700_000, 8), {}, pool_tokens=None, running=None, slots=392, sized_by_plan=True
    )
    assert "how many state slots" in notes[0]


@pytest.mark.parametrize(
    ("seen", "before", "need", "floor", "error", "note"),
    [
        (20, 100, 80, 4, None, None),
        (13, 100, 80, 4, None, None),  # within a tenth of what it takes
        (11, 100, 80, 4, None, "11.0 GiB of memory left at ready where the plan left 20.0 GiB"),
        (3, 100, 80, 4, "3.0 GiB of memory left at ready, below the guard's floor of 4.0 GiB", None),
        (3, 100, 80, None, None, "3.0 GiB of memory left at ready where"),  # a discrete card has no floor
        (3, None, 0, None, None, None),  # not judged: nothing to compare with
        (None, 100, 80, 4, None, "free memory at ready cannot be read"),
        (None, None, 0, None, None, None),
    ],
)
def test_free_memory_at_ready(seen, before, need, floor, error, note):
    size = lambda n: None if n is None else n * GIB  # noqa: E731
    errors, notes = compare_free(size(seen), before=size(before), need=need * GIB, floor=size(floor))
    for found, word in ((errors, error), (notes, note)):
        assert len(found) == (word is not None)
        assert all(text.startswith(word) for text in found)
