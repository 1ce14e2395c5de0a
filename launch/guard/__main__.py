"""`python -m launch.guard`: watch the server whose pid is in a file, run after run, until told to stop.

Exit codes: 0 told to stop, 75 tripped. A hang ends the server and the watch goes on with the next one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from launch.errors import ConfigError
from launch.guard.engine import HttpEngine
from launch.guard.group import end, is_alive
from launch.guard.liveness import Liveness, Pace
from launch.guard.metrics import Endpoint
from launch.guard.policy import Limits, limits_from
from launch.guard.sampler import Sampler
from launch.guard.service import PROBE_EVERY_S, Service
from launch.guard.state import Phase, State, load, save
from launch.host.measure import measure
from launch.serve import read_api_key

GRACE_S = 20.0
TRIPPED = 75


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.guard", description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="the server, as reached from here")
    parser.add_argument("--pid-file", type=Path, required=True, help="holds the server's pid")
    parser.add_argument("--state", type=Path, required=True, help="the state file to keep")
    parser.add_argument("--phase-file", type=Path, help="where the server notes its boot phase")
    parser.add_argument("--admission-file", type=Path, help="where the server notes how it was admitted")
    parser.add_argument(
        "--api-key-file",
        type=Path,
        default=os.environ.get("SPARK_KEY_FILE") or None,
        help="the file the server takes its key from; default: the one SPARK_KEY_FILE names",
    )
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics and /healthz there")
    parser.add_argument("--context", type=int, default=262144, help="longest prompt, tokens")
    parser.add_argument("--once", action="store_true", help="end with the first server")
    args = parser.parse_args(argv)
    host = measure()
    total = host.memory.total if host.memory else 0
    if host.cgroup is not None and host.cgroup.limit is not None:
        total = min(total, host.cgroup.limit)
    try:
        limits = limits_from(os.environ, total)
    except ValueError as e:
        say(f"guard: {e}")
        return 78
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    state = load(args.state) or State()
    state.trip, state.pid = None, None
    endpoint = serve_metrics(args.metrics, state) if args.metrics else None
    last: int | None = None
    while not stop.is_set():
        pid = read_pid(args.pid_file)
        if pid is None or pid == last or not is_alive(pid):
            if state.phase is not Phase.LOADING:
                state.move(Phase.LOADING, "waiting for the server")
                save(args.state, state)
            stop.wait(0.2)
            continue
        state.restarts += last is not None
        last = pid
        try:
            phase = watch(args, pid, limits, state, stop, endpoint)
        except ConfigError as e:
            say(f"guard: {e}")
            return e.exit_code
        if phase is Phase.TRIPPED:
            return TRIPPED
        if args.once:
            return 0
    return 0


def serve_metrics(address: str, state: State) -> Endpoint | None:
    """A port that is taken costs the metrics, not the guard: watching memory matters more."""
    host, _, port = address.rpartition(":")
    try:
        return Endpoint(host, int(port), state)
    except (OSError, ValueError, OverflowError) as e:
        say(f"guard: no metrics on {address}: {e}")
        return None


def watch(  # noqa: PLR0917
    args: argparse.Namespace,
    pid: int,
    limits: Limits,
    state: State,
    stop: threading.Event,
    endpoint: Endpoint | None = None,
) -> Phase:
    """One server's life."""
    state.pid, state.available_at_ready, state.answered = pid, None, False
    state.forced = []
    state.move(Phase.LOADING, "")
    sampler = Sampler()
    engine = HttpEngine(args.url, read_api_key(args.api_key_file) if args.api_key_file else None)
    if endpoint is not None:
        endpoint.engine = engine
    service = Service(
        samples=sampler,
        limits=limits,
        engine=engine,
        liveness=Liveness(pace_from(dict(os.environ)), args.context),
        state_path=args.state,
        server_alive=lambda: not stop.is_set() and is_alive(pid),
        end_server=lambda hurry: end(pid, GRACE_S, hurry=hurry),
        say=say,
        state=state,
        phase_file=args.phase_file,
        admission_file=args.admission_file,
        probe_every_s=float(os.environ.get("SPARK_PROBE_S", PROBE_EVERY_S)),
    )
    try:
        return service.run()
    finally:
        if endpoint is not None:
            endpoint.engine = None
        sampler.close()
        engine.close()


def pace_from(environ: dict[str, str]) -> Pace:
    """The default pace; SPARK_HANG_S replaces its base (seconds an idle engine may take for one token)."""
    raw = environ.get("SPARK_HANG_S")
    return Pace(base_s=float(raw)) if raw else Pace()


if __name__ == "__main__":
    sys.exit(main())
