"""The trend of a noisy series, and the soak's three answers: holds, creeps, cannot be told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from smoke.drift import trend
from smoke.mock.state import State
from smoke.mock.target import SUBJECT, MockServer, MockTarget
from smoke.plugin import CHECKS, run
from smoke.profiles import SOAK
from smoke.record import Recorder
from smoke.report.model import MemoryPoint
from smoke.session import Limits, Session

HOURS = 4


def series(slope: float, noise: float, n: int = 2000) -> list[tuple[float, float]]:
    rng = random.Random(7)
    return [(i * HOURS / n, 64e9 + slope * i * HOURS / n + rng.gauss(0, noise)) for i in range(n)]


def test_a_line_is_found_exactly() -> None:
    found = trend(series(-5e6, 0))
    assert found
    assert found.slope == pytest.approx(-5e6, rel=1e-3)
    assert found.margin < 1e3


def test_noise_widens_the_margin_and_holds_the_slope() -> None:
    found = trend(series(-80e6, 300e6))
    assert found
    assert abs(found.slope + 80e6) < found.margin
    assert 1e6 < found.margin < 40e6


def test_too_little_is_no_trend() -> None:
    assert trend([]) is None
    assert trend([(0, 1), (1, 2), (2, 3)]) is None
    assert trend([(1, 1.0)] * 20) is None


def soaked(points: list[tuple[float, float]], own: float | None = None) -> Any:
    """The memory check's outcome on a recorded series; `own`: by how many bytes an hour the engine itself grows."""
    server = MockServer(State(armed=True, boots=1))
    s = Session(SUBJECT, SOAK, MockTarget(server), Recorder(), 1, Limits(poll_s=0.01), say=lambda _: None)
    s.start()
    s.memo["soak from"] = "0"
    s.rec.memory = [MemoryPoint(at=h * 3600, available=int(v)) for h, v in points]
    s.own_memory = [] if own is None else [(h, 8e9 - v + 64e9) for h, v in series(-own, 1e6, 200)]
    run(s, extra=(f"{CHECKS / 'test_soak.py'}::test_memory",))
    s.close()
    server.close()
    (check,) = s.rec.checks
    return check


def test_memory_that_holds_in_spite_of_noise() -> None:
    assert soaked(series(-10e6, 50e6)).outcome == "passed"


def test_memory_that_creeps() -> None:
    check = soaked(series(-200e6, 50e6))
    assert (check.outcome, check.ident) == ("failed", "soak.memory")
    assert "host memory -2" in check.problem


def test_the_engine_s_own_growth_is_its_own() -> None:
    check = soaked(series(-10e6, 50e6), own=300e6)
    assert (check.outcome, check.ident) == ("failed", "soak.memory")
    assert "the engine's own +300 MB" in check.problem


def test_caches_that_warm_up_are_no_creep_and_let_nothing_pass() -> None:
    """30 MB in three minutes are 600 MB an hour."""
    minutes = [(h / 80, 64e9 - 600e6 * h / 80) for h, _ in series(0, 0)]
    check = soaked(minutes)
    assert (check.outcome, check.matters) == ("not run", True)
    assert "caches that warm up" in check.reason


def test_a_neighbour_s_growth_is_not_the_engine_s_and_lets_nothing_pass() -> None:
    check = soaked(series(-5e9, 50e6), own=0.0)
    assert (check.outcome, check.matters) == ("not run", True)
    assert "a machine of its own" in check.reason


def test_memory_that_cannot_be_told_does_not_pass() -> None:
    check = soaked(series(-40e6, 3e9))
    assert check.outcome == "not run"
    assert check.matters
    assert "soak longer" in check.reason
