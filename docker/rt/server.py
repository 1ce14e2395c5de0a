"""Start the server under supervisor: clear away what a killed predecessor left, note our pid, become `sparkserve serve`.

The container runs one server. A process that is not init, supervisord, one of its children or entered from outside is left
of an earlier server (an orphaned scheduler keeps the GPU's memory), so it is killed before the next one starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from launch.guard.group import MARK, parents

RUN = Path(os.environ.get("SPARK_RUN", "/run/spark"))


def leftovers(table: dict[int, tuple[int, int]], me: int, supervisord: int) -> set[int]:
    """Processes of the container that belong to nobody living: all but init, supervisord, its children's trees and us.

    What `docker exec` and the health check start has no parent here (0), while an orphan has init: it is not the server's.
    """
    kept = {1, supervisord, me} | {p for p, (parent, _) in table.items() if parent == 0}
    grew = True
    while grew:
        more = {p for p, (parent, _) in table.items() if p not in kept and parent in kept and parent != 1}
        kept |= more
        grew = bool(more)
    return table.keys() - kept


def main() -> None:
    supervisord = os.getppid()
    for _ in range(50):
        left = leftovers(parents(), os.getpid(), supervisord)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    argv = json.loads((RUN / "serve.json").read_text())
    tmp = RUN / "server.pid.tmp"
    tmp.write_text(f"{os.getpid()}\n")
    tmp.replace(RUN / "server.pid")
    os.environ[MARK] = str(os.getpid())
    os.execv(sys.executable, [sys.executable, "-m", "launch", "serve", *argv])


if __name__ == "__main__":
    main()
