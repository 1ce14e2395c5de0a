"""Run in a container with a memory limit: SEEDS servers under the real guard, one after the other; prints one JSON line.

The guard runs five times faster than in service (a look every 0.1 s), so that a hundred runs take minutes. An observer of its
own looks every 5 ms at what is really available.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from launch.guard.group import MARK, end, is_alive
from launch.guard.liveness import Liveness, Pace
from launch.guard.policy import Limits
from launch.guard.sampler import Sampler
from launch.guard.service import PERIOD_S, Service
from launch.guard.state import State, load

MIB = 1 << 20
HERE = Path(__file__).parent
FASTER = 5
PERIOD = PERIOD_S / FASTER
FLOOR = 128 * MIB
LIM = Limits(floor=FLOOR, floor_s=2.0 / FASTER, full_percent=1000.0)
HEADROOM = 40 * MIB  # above the floor, where the patterns begin
RATE = 200 * MIB
PATTERNS = ("steady", "bursts", "sawtooth", "creep", "children", "stubborn", "runaway", "well-behaved")
STATE = Path("/run/spark/state.json")


class NoEngine:
    def work(self):
        raise httpx.ConnectError("none")

    def one_token(self, timeout_s):
        raise httpx.ConnectError("none")

    def metrics_text(self):
        raise httpx.ConnectError("none")


class Timed:
    """The real sampler; remembers when it looked."""

    def __init__(self):
        self.inner, self.looks = Sampler(), []
        self.sees_kernel_log = self.inner.sees_kernel_log

    def sample(self):
        s = self.inner.sample()
        self.looks.append(s.t)
        return s


def of_seed(seed):
    """Living processes of this seed."""
    found = []
    for p in Path("/proc").iterdir():
        if p.name.isdigit() and is_alive(int(p.name)):
            with contextlib.suppress(OSError):
                if f"SEED={seed}".encode() in (p / "environ").read_bytes().split(b"\0"):
                    found.append(int(p.name))
    return found


def reap():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def one(seed, state):
    pattern = PATTERNS[seed % len(PATTERNS)]
    sampler = Timed()
    free = sampler.inner.sample().available
    headroom = HEADROOM * (2 if pattern == "well-behaved" else 1)
    base = max(0, free - FLOOR - headroom)
    argv = [str(HERE / "allocate.py"), str(seed), pattern, str(base), str(RATE)]
    code = f"import os, sys; os.environ[{MARK!r}] = str(os.getpid()); os.execv(sys.executable, [sys.executable, *{argv!r}])"
    p = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env={**os.environ, "SEED": str(seed)}
    )
    stop, least = threading.Event(), [free]
    watcher = Sampler()

    def observe():
        while not stop.wait(0.005):
            least[0] = min(least[0], watcher.sample().available)

    observer = threading.Thread(target=observe, daemon=True)
    observer.start()
    ended = []

    def end_server(hurry):
        began = time.monotonic()
        clean = end(p.pid, 4.0, hurry=hurry)
        ended.append(time.monotonic() - began)
        return clean

    service = Service(
        samples=sampler, limits=LIM, engine=NoEngine(), liveness=Liveness(Pace(), 1000), state_path=STATE,
        server_alive=lambda: p.poll() is None, end_server=end_server, state=state, say=lambda _t: None,
        sleep=lambda s: time.sleep(s / FASTER),
    )  # fmt: skip
    phase = service.run()
    p.wait()
    stop.set()
    observer.join()
    time.sleep(0.02)
    left = of_seed(seed)
    reap()
    gaps = [b - a for a, b in zip(sampler.looks, sampler.looks[1:], strict=False)]
    sampler.inner.close()
    watcher.close()
    return {
        "seed": seed, "pattern": pattern, "phase": str(phase), "least": least[0], "looks": len(sampler.looks),
        "longest_step": max(gaps, default=0.0), "ending": ended[0] if ended else 0.0, "left": len(left),
    }  # fmt: skip


def oom_kills():
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return -1


def main(seeds):
    rows, survived = [], 0
    for seed in range(seeds):
        state = load(STATE) or State()
        before = state.low_water
        state.trip = None
        rows.append(one(seed, state))
        kept = load(STATE)
        good = kept is not None and str(kept.phase) == rows[-1]["phase"] and kept.low_water is not None
        survived += good and (before is None or kept.low_water <= before)
        rows[-1]["reason"] = (kept.trip or {}).get("reason") if kept else None
    print(
        json.dumps(
            {
                "rows": rows,
                "survived": survived,
                "oom_kills": oom_kills(),
                "floor": FLOOR,
                "rate": RATE,
                "period": PERIOD,
            }
        )
    )


main(int(sys.argv[1]))
