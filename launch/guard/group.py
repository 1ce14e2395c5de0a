"""End a server and everything it started: its process group, and children that left it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

POLL_S = 0.05
# Set in the server's environment to its own pid, and so in all that it starts.
MARK = "SPARKSERVE_SERVER_PID"


def parents(root: Path = Path("/")) -> dict[int, tuple[int, int]]:
    """pid -> (parent, process group) of every living process below `root`/proc; zombies are not living."""
    rows = ((int(p.name), _row(p / "stat")) for p in (root / "proc").iterdir() if p.name.isdecimal())
    return {pid: row for pid, row in rows if row is not None}


def is_alive(pid: int, root: Path = Path("/")) -> bool:
    """Whether `pid` runs; one file is read, for this is asked twice a second. A zombie does not run."""
    return _row(root / "proc" / str(pid) / "stat") is not None


def _row(stat: Path) -> tuple[int, int] | None:
    """(parent, process group) from a stat file; None for a process that is gone or a zombie."""
    try:
        text = stat.read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    rest = text.rpartition(")")[2].split()
    return (int(rest[1]), int(rest[2])) if len(rest) >= 3 and rest[0] not in ("Z", "X") else None


def marked(pid: int, pids: Iterable[int], root: Path = Path("/")) -> set[int]:
    """Those of `pids` whose environment says that server `pid` started them (`MARK`).

    A daemon that left its group and whose parent has died has no other tie to the server. What may not be read is not ours.
    """
    word = f"{MARK}={pid}".encode()
    found = set()
    for p in pids:
        with contextlib.suppress(OSError):
            if word in (root / "proc" / str(p) / "environ").read_bytes().split(b"\0"):
                found.add(p)
    return found


def relatives(pid: int, root: Path = Path("/")) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """Everything that belongs to server `pid` now, by descent, group or mark; and the table it was found in."""
    table = parents(root)
    found = family(pid, table)
    return found | marked(pid, table.keys() - found, root), table


def family(pid: int, table: dict[int, tuple[int, int]]) -> set[int]:
    """`pid`, all its descendants, and all members of the groups that any of them lead or belong to."""
    found = {pid} if pid in table else set()
    groups = {pid}
    while True:
        more = {
            p
            for p, (parent, group) in table.items()
            if p not in found and (parent in found or group in groups)
        }
        if not more:
            return found
        found |= more
        # A child that made a group of its own takes that group along.
        groups |= {table[p][1] for p in more if table[p][1] in found}


def end(
    pid: int,
    grace_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    root: Path = Path("/"),
    hurry: Callable[[], bool] = lambda: False,
) -> bool:
    """TERM to the whole family of `pid`, then KILL to what is left after `grace_s` or on `hurry`; True when nothing is left.

    The family is looked up again before KILL: what forked in between is found by its group. Processes that were found once
    stay on the list, so that one whose parent died first (and was adopted by init) is not lost.
    """
    known, _ = relatives(pid, root)
    _signal(known, signal.SIGTERM)
    deadline = clock() + grace_s
    while clock() < deadline:
        found, table = relatives(pid, root)
        known |= found
        if not known & table.keys():
            return True
        if hurry():
            break
        time.sleep(POLL_S)
    for _ in range(20):
        found, table = relatives(pid, root)
        known |= found
        left = known & table.keys()
        if not left:
            return True
        _signal(left, signal.SIGKILL)
        time.sleep(0.1)
    return False


def _signal(pids: set[int], number: int) -> None:
    for p in pids:
        if p not in (1, os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(p, number)
