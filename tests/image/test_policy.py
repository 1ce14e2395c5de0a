"""What an end of the server means for the container."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docker" / "rt"))

from policy import Again, Budget, End, Keeper

SERVING = {"was_ready": True, "tripped": None, "wedged": False}
STARTING = {"was_ready": False, "tripped": None, "wedged": False}


@pytest.mark.parametrize(("code", "ends"), [(2, 78), (73, 78), (78, 78), (75, 75)])
def test_what_a_restart_would_not_mend_ends_at_once(code, ends):
    verdict = Keeper().server_ended(code, now=0, **STARTING)
    assert isinstance(verdict, End)
    assert verdict.code == ends


def test_failed_start_is_tried_once_more_then_70():
    keeper = Keeper()
    assert isinstance(keeper.server_ended(70, now=0, **STARTING), Again)
    last = keeper.server_ended(70, now=9, **STARTING)
    assert isinstance(last, End)
    assert (last.code, "2 tries" in last.why) == (70, True)


def test_guard_s_trip_is_75_and_never_restarts():
    verdict = Keeper().server_ended(-15, was_ready=True, tripped="floor: 1 GiB", wedged=False, now=0)
    assert verdict == End(75, "the guard stopped the server: floor: 1 GiB")


def test_crash_budget_waits_longer_each_time_and_ends_with_70():
    keeper = Keeper(Budget(crashes=3))
    verdicts = [keeper.server_ended(-9, now=float(t), **SERVING) for t in range(4)]
    assert [v.wait_s for v in verdicts[:3]] == [2, 4, 8]
    assert isinstance(verdicts[3], End)
    assert verdicts[3].code == 70


def test_crashes_outside_the_window_are_forgotten():
    keeper = Keeper(Budget(crashes=1, window_s=100))
    for t in (0, 101, 202, 303):
        verdict = keeper.server_ended(-9, now=float(t), **SERVING)
        assert isinstance(verdict, Again)
        assert verdict.wait_s == 2


def test_wait_is_bounded():
    keeper = Keeper(Budget(crashes=50))
    waits = [keeper.server_ended(-9, now=float(t), **SERVING).wait_s for t in range(20)]
    assert max(waits) == 60


def test_server_that_answered_gets_its_start_tries_back():
    keeper = Keeper()
    keeper.server_ended(70, now=0, **STARTING)
    keeper.server_ended(-9, now=1, **SERVING)
    assert isinstance(keeper.server_ended(70, now=2, **STARTING), Again)


def test_guard_that_is_told_wrong_or_ends_again_and_again_ends_the_container():
    keeper = Keeper()
    assert keeper.guard_ended(78, 0.0) == End(78, "the guard cannot run (exit code 78)")
    assert keeper.guard_ended(75, 0.0) is None
    assert keeper.guard_ended(0, 0.0) is None
    assert all(isinstance(keeper.guard_ended(1, float(t)), Again) for t in range(4))
    verdict = keeper.guard_ended(1, 5.0)
    assert isinstance(verdict, End)
    assert verdict.code == 70
    slow = Keeper()
    assert all(isinstance(slow.guard_ended(-11, t * 61.0), Again) for t in range(20))


def test_hang_says_so():
    assert "hung" in Keeper().server_ended(-15, was_ready=True, tripped=None, wedged=True, now=0).why
