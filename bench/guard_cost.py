"""What the guard costs: CPU time of its two looks a second, as a share of one core. `python bench/guard_cost.py [LOOKS]`.

Counts the whole loop body (sample, policy, liveness, is the server alive, state file every 5 s), in process CPU time, so
that a busy machine does not distort it. The promise is under 0.5 %.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch.guard.group import is_alive
from launch.guard.liveness import Liveness, Pace, Work
from launch.guard.policy import Limits
from launch.guard.sampler import Sampler
from launch.guard.service import PERIOD_S, Service
from launch.guard.state import Phase

PROMISE_PERCENT = 0.5


class Idle:
    """An engine nobody asks: the probe has a thread and a rhythm of its own."""

    def work(self) -> Work:
        return Work()

    def one_token(self, timeout_s: float) -> bool:
        return timeout_s > 0

    def metrics_text(self) -> str:
        return ""


def main(looks: int) -> int:
    sampler = Sampler()
    done = 0

    def alive() -> bool:
        nonlocal done
        done += 1
        return done <= looks and is_alive(os.getpid())

    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        if seconds != PERIOD_S:  # the prober's thread
            time.sleep(1)
            return
        now += seconds

    with tempfile.TemporaryDirectory() as folder:
        service = Service(
            samples=sampler, limits=Limits(floor=1), engine=Idle(), liveness=Liveness(Pace(), 1000),
            state_path=Path(folder) / "state.json", server_alive=alive, end_server=lambda hurry: not hurry(),
            clock=lambda: now, sleep=sleep,
        )  # fmt: skip
        before = time.process_time()
        phase = service.run()
        spent = time.process_time() - before
    sampler.close()
    assert phase is Phase.STOPPED, phase
    percent = spent / looks / PERIOD_S * 100
    print(
        json.dumps(
            {
                "looks": looks,
                "cpu_ms_per_look": round(spent / looks * 1000, 4),
                "percent_of_a_core_at_2_hz": round(percent, 4),
                "promise_percent": PROMISE_PERCENT,
                "cpu": platform.machine(),
                "cgroup_limit_read": sampler.reads_cgroup,
            }
        )
    )
    return 0 if percent < PROMISE_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
