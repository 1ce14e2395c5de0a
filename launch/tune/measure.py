"""Run the measurements: one worker process per candidate, watched, bounded in time, every result kept. I/O edge.

A worker that dies or says nothing for `item_s` seconds costs its current shape only: the rest is tried once more in a new
process, and after a second failure the candidate is given up. `keep` is called for each finished measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from launch.errors import EngineFailed
from launch.tune.work import Item

FAILURES = 2  # of one candidate's processes, before it is given up


@dataclass(frozen=True)
class Limits:
    """`total_s`: all of it. `item_s`: between two lines of a worker, compilation included."""

    total_s: float
    item_s: float = 600.0
    clock: Callable[[], float] = time.monotonic


@dataclass
class Outcome:
    """What a run did. `unfinished` counts measurements that time did not allow."""

    measured: int = 0
    failed: int = 0
    kept: int = 0
    unfinished: int = 0
    device: dict[str, Any] = field(default_factory=dict)


Keep = Callable[[str, dict[str, Any]], None]


def measure(
    items: Sequence[Item],
    records: Mapping[str, Mapping[str, Any]],
    command: Sequence[str],
    limits: Limits,
    keep: Keep,
    *,
    cwd: Path,
    log: Path,
    say: Callable[[str], None] = lambda _text: None,
    extra: Mapping[str, Any] | None = None,
) -> Outcome:
    """Measure every item without a record. `extra` goes into each job (a test's device and sizes)."""
    out = Outcome()
    end = limits.clock() + limits.total_s
    log.parent.mkdir(parents=True, exist_ok=True)
    for candidate, group in groupby(items, key=lambda i: i.candidate):
        all_ = list(group)
        todo = [i for i in all_ if i.key not in records]
        out.kept += len(all_) - len(todo)
        failures = 0
        while todo and failures < FAILURES:
            left = end - limits.clock()
            if left <= 0:
                break
            say(f"{candidate.name}: {len(todo)} to measure, {left / 60:.1f} minutes left")
            before = len(todo)
            job = {
                "role": candidate.role, "option": candidate.option, "autotune": candidate.autotune,
                "items": [i.job() for i in todo], **(extra or {}),
            }  # fmt: skip
            todo, ended = _one(job, candidate.env, todo, command, end, limits, keep, out, cwd, log)
            if ended == "time":
                break
            if ended:
                failures += 1
                keep(todo[0].key, {"error": ended})
                out.failed += 1
                todo = todo[1:]
            elif len(todo) == before:  # a clean end without a result
                failures = FAILURES
        if failures >= FAILURES:
            for item in todo:
                keep(item.key, {"error": f"given up: {candidate.name} failed {FAILURES} times"})
                out.failed += 1
            todo = []
        out.unfinished += len(todo)
    return out


def _one(  # noqa: PLR0917
    job: dict[str, Any], env: Mapping[str, str], todo: list[Item], command: Sequence[str], end: float, limits: Limits,
    keep: Keep, out: Outcome, cwd: Path, log: Path,
) -> tuple[list[Item], str]:  # fmt: skip
    """One worker process. (items without a result, why it ended early: "", "time" or what to record)."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd,
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        lines: queue.Queue[str | None] = queue.Queue()
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        left = {i.key: i for i in todo}
        ended = False
        try:
            try:
                process.stdin.write(json.dumps(job))
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died at once: the exit code says so below
            while left:
                wait = min(limits.item_s, end - limits.clock())
                try:
                    line = lines.get(timeout=max(0.0, wait))
                except queue.Empty:
                    if limits.clock() >= end:
                        return list(left.values()), "time"
                    return list(left.values()), f"no result within {limits.item_s:.0f} s"
                if line is None:
                    ended = True
                    break
                _take(line, left, keep, out)
        finally:
            # A closed stdout means that it is about to end by itself: its exit code is worth waiting for.
            _end(process, 20 if ended else 0)
    if left and process.returncode:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        return list(left.values()), f"the worker ended with {how}; see {log}"
    return list(left.values()), ""


def _take(line: str, left: dict[str, Item], keep: Keep, out: Outcome) -> None:
    try:
        said = json.loads(line)
    except ValueError:
        return
    if not isinstance(said, dict):
        return
    if "ready" in said:
        out.device = said["ready"]
    elif "id" not in said and "error" in said:
        raise EngineFailed(f"the worker cannot measure: {said['error']}")
    elif said.get("id") in left:
        del left[said["id"]]
        if said.get("us"):
            out.measured += 1
            keep(said["id"], {"us": said["us"]})
        else:
            out.failed += 1
            keep(said["id"], {"error": str(said.get("error", "no timings"))})


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str], patience: float) -> None:
    """Wait for the worker; then stop it and what it started (compilers), whether it has ended or not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
