"""Supervisor's event listener: asks the policy what an end of the server means, and does it.

Speaks supervisor's event protocol on stdin and stdout (supervisor.childutils), so it prints only to stderr.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import xmlrpc.client
from pathlib import Path

from policy import Again, Budget, End, Keeper
from supervisor import childutils
from supervisor.xmlrpc import SupervisorTransport

from launch.guard.state import Phase, load

RUN = Path(os.environ.get("SPARK_RUN", "/run/spark"))


def say(text: str) -> None:
    sys.stderr.write(f"keeper: {text}\n")
    sys.stderr.flush()


def budget() -> Budget:
    """The defaults, or what SPARK_CRASHES and SPARK_CRASH_WINDOW_S say."""
    d = Budget()
    crashes, window = os.environ.get("SPARK_CRASHES"), os.environ.get("SPARK_CRASH_WINDOW_S")
    return Budget(
        crashes=int(crashes) if crashes else d.crashes, window_s=float(window) if window else d.window_s
    )


class Listener:
    def __init__(self) -> None:
        transport = SupervisorTransport(None, None, f"unix://{RUN}/supervisor.sock")
        self.rpc = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
        self.keeper = Keeper(budget())
        self.start_at: float | None = None
        self.ending = False

    def handle(self, name: str, process: dict[str, str]) -> None:
        if self.ending:
            return
        if name == "PROCESS_STATE_EXITED" and process.get("processname") == "server":
            self.server_ended()
        elif name == "PROCESS_STATE_EXITED" and process.get("processname") == "guard":
            self.guard_ended()
        elif name == "PROCESS_STATE_FATAL" and process.get("processname") == "guard":
            self.end(End(70, "the guard cannot run; nothing is served without it"))
        if self.start_at is not None and time.monotonic() >= self.start_at:
            self.start_at = None
            with contextlib.suppress(xmlrpc.client.Fault):
                self.rpc.supervisor.startProcess("server", False)

    def server_ended(self) -> None:
        info = self.rpc.supervisor.getProcessInfo("server")
        code = int(info.get("exitstatus") or 0)
        state = load(RUN / "state.json")
        mine = state is not None and state.pid == self.pid()
        was_ready = state is not None and mine and state.answered
        tripped = None
        if state is not None and state.phase is Phase.TRIPPED and state.trip:
            tripped = f"{state.trip.get('reason')}: {state.trip.get('detail')}"
        wedged = state is not None and state.phase is Phase.WEDGED
        # A TERM from outside ends the server with 0; supervisor itself reports that as STOPPED, not EXITED.
        verdict = self.keeper.server_ended(
            code or -signal.SIGTERM, was_ready=was_ready, tripped=tripped, wedged=wedged, now=time.monotonic()
        )
        if isinstance(verdict, Again):
            say(f"{verdict.why}; starting it again in {verdict.wait_s:.0f} s")
            self.start_at = time.monotonic() + verdict.wait_s
        else:
            self.end(verdict)

    def guard_ended(self) -> None:
        code = int(self.rpc.supervisor.getProcessInfo("guard").get("exitstatus") or 0)
        verdict = self.keeper.guard_ended(code, time.monotonic())
        if isinstance(verdict, End):
            self.end(verdict)
        elif verdict is not None:
            say(f"{verdict.why}; starting it again")
            self.rpc.supervisor.startProcess("guard", False)

    @staticmethod
    def pid() -> int:
        """The pid of the server that ended: supervisor forgets it, the server's own note does not."""
        try:
            return int((RUN / "server.pid").read_text())
        except (OSError, ValueError):
            return 0

    def end(self, verdict: End) -> None:
        self.ending = True
        tmp = RUN / "exit-code.tmp"
        tmp.write_text(f"{verdict.code} {verdict.why}\n")
        tmp.replace(RUN / "exit-code")
        os.kill(os.getppid(), signal.SIGTERM)


def main() -> None:
    listener = Listener()
    while True:
        headers, payload = childutils.listener.wait(sys.stdin, sys.stdout)
        process = childutils.get_headers(payload) if headers["eventname"].startswith("PROCESS") else {}
        try:
            listener.handle(headers["eventname"], process)
        except Exception as e:  # a listener that dies would leave a dead server unnoticed
            say(f"{type(e).__name__}: {e}")
        childutils.listener.ok(sys.stdout)


if __name__ == "__main__":
    main()
