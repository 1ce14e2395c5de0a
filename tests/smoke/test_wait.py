"""Waiting: composable, with a deadline per phase, and one clear reason when it ends badly. No real time passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from smoke import wait
from smoke.errors import NOT_ADMITTED, SmokeError
from smoke.mock.state import State
from smoke.mock.target import MockServer
from smoke.targets.process import free_port


@dataclass
class Fake:
    """A target whose life and log are set by the test."""

    url: str = "http://127.0.0.1:9"
    now: wait.Life = field(default_factory=lambda: wait.Life(alive=True))
    text: str = ""

    def life(self) -> wait.Life:
        return self.now

    def log(self) -> str:
        return self.text


@dataclass
class Says:
    """Missing until asked `times` times."""

    times: int
    asked: int = 0

    def look(self, target: wait.Watched) -> str | None:
        self.asked += 1
        return None if self.asked > self.times else "not yet"


class Clock:
    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t

    def sleep(self, seconds: float) -> None:
        self.t += seconds


@pytest.fixture(scope="module")
def mock() -> Iterator[MockServer]:
    server = MockServer(State(armed=True))
    yield server
    server.close()


def test_phases_are_timed_in_order() -> None:
    c = Clock()
    phases = [wait.Phase("one", Says(3), 10, every=1), wait.Phase("two", Says(1), 10, every=2)]
    took = wait.wait_for(Fake(), phases, c, c.sleep)
    assert [(t.phase, t.seconds) for t in took] == [("one", 3.0), ("two", 2.0)]


def test_a_late_phase_names_what_is_missing_the_cause_and_the_tail() -> None:
    c = Clock()
    target = Fake(text="\n".join(f"line {i}" for i in range(99)) + "\nBuilding JIT module topk; this can")
    with pytest.raises(SmokeError) as e:
        wait.wait_for(target, [wait.Phase("ready", Says(99), 5, every=1)], c, c.sleep)
    assert "phase 'ready' was not done within 5 s: not yet" in e.value.problem
    assert "compiling" in e.value.problem
    assert e.value.tail.splitlines()[0] == "line 60"
    assert c.t == 5.0


def test_a_death_ends_the_wait_at_once() -> None:
    target = Fake(now=wait.Life(alive=False, exit_code=137))
    with pytest.raises(SmokeError, match="SIGKILL") as e:
        wait.wait_for(target, [wait.Phase("port", wait.Alive(), 1e9)], Clock(), lambda _: None)
    assert e.value.code == NOT_ADMITTED


def test_a_restart_ends_the_wait_at_once() -> None:
    with pytest.raises(SmokeError, match="restarted 2 time"):
        wait.NoRestart().look(Fake(now=wait.Life(alive=True, restarts=2)))
    assert wait.NoRestart(allowed=2).look(Fake(now=wait.Life(alive=True, restarts=2))) is None


def test_the_guard_is_heard() -> None:
    with pytest.raises(SmokeError, match="guard") as e:
        wait.GuardQuiet().look(Fake(now=wait.Life(alive=True, health="tripped")))
    assert e.value.code == NOT_ADMITTED
    assert wait.GuardQuiet().look(Fake(now=wait.Life(alive=True, health="wedged"))) is not None
    assert wait.GuardQuiet().look(Fake(now=wait.Life(alive=True, health="loading"))) is None
    assert wait.Healthy().look(Fake(now=wait.Life(alive=True, health="loading"))) is not None
    assert wait.Healthy().look(Fake()) is None


def test_all_and_any() -> None:
    yes, no = Says(0), Says(99)
    assert wait.All([yes, no]).look(Fake()) == "not yet"
    assert wait.Any_([yes, no]).look(Fake()) is None
    assert wait.Any_([no, no]).look(Fake()) == "not yet and not yet"


def test_a_closed_port() -> None:
    missing = wait.PortOpen().look(Fake(url=f"http://127.0.0.1:{free_port()}"))
    assert missing is not None
    assert "nothing listens" in missing


def test_real_tokens_come_from_a_real_generation(mock: MockServer) -> None:
    target = Fake(url=mock.url)
    assert wait.PortOpen().look(target) is None
    assert wait.HttpOk().look(target) is None
    assert wait.RealTokens(4).look(target) is None


def test_green_but_wedged_is_not_ready(mock: MockServer) -> None:
    mock.state.faults, mock.state.alive = frozenset(["stays-green"]), False
    try:
        assert wait.HttpOk().look(Fake(url=mock.url)) is None
        missing = wait.RealTokens(4).look(Fake(url=mock.url))
    finally:
        mock.state.faults, mock.state.alive = frozenset(), True
    assert missing is not None
    assert "503" in missing


def test_a_boot_is_divided_by_the_engines_own_timings() -> None:
    took = [wait.Took("port", 10.0), wait.Took("ready", 1.0)]
    timings = {
        "load_weight": 3.0,
        "kv_cache_allocation": 1.0,
        "scheduler_e2e": 8.0,
        "draft_decode": 0.5,
        "decode": 0.5,
    }
    parts = wait.split_boot(took, timings)
    assert [(t.phase, t.seconds) for t in parts] == [
        ("process", 5.0), ("weights", 3.0), ("kv pool", 1.0), ("graphs", 1.0), ("ready", 1.0),
    ]  # fmt: skip
    assert wait.split_boot(took, {}) == took
    assert wait.split_boot(took, {"load_weight": 99.0}) == took


def test_log_line() -> None:
    assert wait.LogLine("ready").look(Fake(text="is ready now")) is None
    assert wait.LogLine("ready").look(Fake()) is not None
