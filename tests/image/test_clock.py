"""A step of the wall clock (NTP, a suspended machine) ends, restarts and trips nothing: decisions use the monotonic clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.guard import state as state_module
from launch.guard.liveness import Liveness, Pace, Work
from launch.guard.policy import Limits, Sample
from launch.guard.service import Service
from launch.guard.state import Phase, State, load

RT = Path(__file__).resolve().parents[2] / "docker" / "rt"
sys.path.insert(0, str(RT))

from policy import Again, Budget, Keeper  # noqa: E402

STEPS = (86400.0 * 400, -86400.0 * 400)


class Plenty:
    """Samples of a machine with memory enough; their times are the fake monotonic clock's."""

    sees_kernel_log = True

    def __init__(self, clock) -> None:
        self.clock = clock

    def sample(self) -> Sample:
        return Sample(t=self.clock(), available=64 << 30, swap_used=0, full_us=0, driver_lines=())


class Answers:
    """An engine that always answers."""

    def work(self) -> Work:
        return Work()

    def one_token(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        return True

    def metrics_text(self) -> str:
        return ""


@pytest.mark.parametrize("step", STEPS)
def test_guard_neither_trips_nor_calls_a_hang_when_the_clock_steps(tmp_path, monkeypatch, step):
    wall, mono, looks = [1_800_000_000.0], [100.0], [0]
    monkeypatch.setattr(state_module.time, "time", lambda: wall[0])

    def sleep(seconds: float) -> None:
        mono[0] += seconds
        wall[0] += seconds

    def alive() -> bool:
        looks[0] += 1
        if looks[0] == 20:
            wall[0] += step
        return looks[0] < 200

    ended: list[bool] = []
    service = Service(
        samples=Plenty(lambda: mono[0]),
        limits=Limits.default(128 << 30),
        engine=Answers(),
        liveness=Liveness(Pace(base_s=60), 4096),
        state_path=tmp_path / "state.json",
        server_alive=alive,
        end_server=lambda: bool(ended.append(True)) or True,
        say=lambda _text: None,
        clock=lambda: mono[0],
        sleep=sleep,
        state=State(),
    )
    monkeypatch.setattr(service, "_probe_forever", lambda: None)  # probed here instead, in order
    service.probe()
    assert service.state.phase is Phase.READY
    assert service.run() is Phase.STOPPED
    assert ended == []
    saved = load(tmp_path / "state.json")
    assert saved is not None
    assert saved.trip is None


@pytest.mark.parametrize("step", STEPS)
def test_hang_is_judged_by_the_monotonic_clock(monkeypatch, step):
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0 + step)
    live = Liveness(Pace(base_s=60), 4096)
    live.probe_sent(100.0, Work())
    assert not live.hung(159.0)
    assert live.hung(161.0)


@pytest.mark.parametrize("step", STEPS)
def test_keeper_counts_crashes_by_the_time_it_is_handed(monkeypatch, step):
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0 + step)
    keeper = Keeper(Budget(crashes=1))
    verdict = keeper.server_ended(-9, was_ready=True, tripped=None, wedged=False, now=10.0)
    assert isinstance(verdict, Again)


@pytest.mark.parametrize("program", ["listener.py", "policy.py"])
def test_keeper_never_asks_the_wall_clock(program):
    assert "time.time(" not in (RT / program).read_text()


def test_health_line_never_shows_negative_seconds(tmp_path):
    state = {"phase": "ready", "since": time.time() + 86400, "step": "", "trip": None}
    (tmp_path / "state.json").write_text(json.dumps(state))
    done = subprocess.run(
        [sys.executable, str(RT / "health.py")],
        env={"SPARK_RUN": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ready for 0 s")
