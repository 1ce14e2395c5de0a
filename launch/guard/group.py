"""End a server and everything it started: its process group, and children that left it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def parents(root: Path = Path("/")) -> dict[int, tuple[int, int]]:
    """pid -> (parent, process group) of every living process below `root`/proc; zombies are not living."""
    table = {}
    for entry in (root / "proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name in parentheses may hold spaces and parentheses itself.
        rest = stat.rpartition(")")[2].split()
        if len(rest) >= 3 and rest[0] not in ("Z", "X"):
            table[int(entry.name)] = (int(rest[1]), int(rest[2]))
    return table


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
) -> bool:
    """TERM to the whole family of `pid`, then KILL to what is left after `grace_s`; True when nothing is left.

    The family is looked up again before KILL: what forked in between is found by its group. Processes that were found once
    stay on the list, so that one whose parent died first (and was adopted by init) is not lost.
    """
    known = family(pid, parents(root))
    _signal(known, signal.SIGTERM)
    deadline = clock() + grace_s
    while clock() < deadline:
        table = parents(root)
        known |= family(pid, table)
        if not known & table.keys():
            return True
        time.sleep(0.05)
    for _ in range(20):
        table = parents(root)
        known |= family(pid, table)
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
