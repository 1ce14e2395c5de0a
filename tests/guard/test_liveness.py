"""A long prefill is not a hang; a hang is. On a simulated clock with a simulated engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.guard.liveness import Liveness, Pace, Work

CONTEXT = 262_144


def simulate(work_at, *, answered_at=None, until=4000.0, context=CONTEXT, step=0.5, look=5.0):
    """Send a probe at 0, look at the counters every `look` s; the second at which it was called hung, or None."""
    live = Liveness(Pace(), context)
    live.probe_sent(0.0, work_at(0.0))
    t = 0.0
    while t <= until:
        if answered_at is not None and t >= answered_at:
            live.probe_answered()
            assert not live.waiting
            return None
        if t % look == 0:
            live.progress(t, work_at(t))
        if live.hung(t):
            return t
        t += step
    return None


def prefill(t, *, seconds=300.0, tokens=131_072):
    """Chunks of 2,048 tokens, counted as they finish."""
    done = int(min(1.0, t / seconds) * tokens) // 2048 * 2048
    return Work(running=1, queued=1, prompt_tokens_total=done)


def test_prefill_of_300_s_is_no_hang():
    assert simulate(prefill, answered_at=300.0) is None


def test_prefill_of_300_s_is_no_hang_even_when_counters_move_only_at_its_end():
    silent = Work(running=1, queued=1)
    assert simulate(lambda _t: silent, answered_at=300.0) is None


def test_prefill_of_one_hour_with_progress_is_no_hang():
    slow = lambda t: prefill(t, seconds=3600.0, tokens=10_000_000)  # noqa: E731
    assert simulate(slow, answered_at=3600.0, until=5000.0) is None


def test_idle_engine_that_does_not_answer_hangs_after_the_base_time():
    assert simulate(lambda _t: Work()) == 60.0


def test_hang_in_the_middle_of_a_prefill_is_found():
    """Counters stop at 100 s and never move again."""
    found = simulate(lambda t: prefill(min(t, 100.0)), until=8000.0)
    assert found is not None
    deadline = Pace().deadline_s(Work(running=1, queued=1), CONTEXT)
    assert 95.0 + deadline <= found <= 105.0 + deadline


def test_work_that_comes_while_the_probe_is_out_extends_its_deadline():
    late = lambda t: Work() if t < 50 else Work(running=1)  # noqa: E731
    found = simulate(late)
    assert found == pytest.approx(Pace().deadline_s(Work(running=1), CONTEXT), abs=0.5)  # one step


def test_second_probe_does_not_start_the_clock_again():
    live = Liveness(Pace(base_s=10.0), CONTEXT)
    live.probe_sent(0.0, Work())
    live.probe_sent(9.0, Work())
    assert not live.hung(9.9)
    assert live.hung(10.0)
    live.probe_answered()
    assert not live.hung(1000.0)


@pytest.mark.parametrize(
    ("work", "want"),
    [
        (Work(), 60.0),
        (Work(running=1), 60.0 + CONTEXT / 90 + 5),
        (Work(running=2, queued=3), 60.0 + CONTEXT / 90 + 25),
        (Work(queued=1, pending_prompt_tokens=900_000), 60.0 + 10_000 + 5),
    ],
)
def test_deadline(work, want):
    assert Pace().deadline_s(work, CONTEXT) == pytest.approx(want)


@given(st.integers(0, 64), st.integers(0, 64), st.integers(0, 10**6), st.integers(0, 64))
def test_more_work_never_means_less_patience(running, queued, tokens, more):
    pace = Pace()
    a = pace.deadline_s(Work(running, queued, pending_prompt_tokens=tokens), CONTEXT)
    b = pace.deadline_s(Work(running + more, queued, pending_prompt_tokens=tokens + more), CONTEXT)
    assert b >= a
