"""The lock around admission, and what starting servers have been promised. The I/O edge of `launch.admit`.

Each server keeps a note `admission/NAME.json` in the state folder, under a lock of its own that lives as long as the server:
the kernel drops it when the process dies, so a note without a holder is void. While one start is judged nobody else's
is, and until a server answers its promised bytes count as taken. Two starts that fit only one at a time cannot both pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from launch import machine as machines
from launch.admit import Admission, decide
from launch.errors import CannotWrite, ConfigError, NotAdmitted
from launch.files import write_text
from launch.host.measure import Host, measure
from launch.resolve import Resolved

WAIT_S = 60.0
Say = Callable[[str], None]


@dataclass
class Reservation:
    """A server's note. `ready` frees what it was promised: from then on the machine's own figures show it."""

    path: Path
    record: dict[str, Any]
    _lock: BaseFileLock
    _copy: Path | None = None

    def write(self) -> None:
        text = json.dumps(self.record, indent=1) + "\n"
        write_text(self.path, text, 0o600)
        if self._copy is not None:
            write_text(self._copy, text)

    def ready(self) -> None:
        self.record["promised"] = 0
        with contextlib.suppress(CannotWrite):
            self.write()

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        self._lock.release()


def promised(folder: Path, but: str = "") -> int:
    """Bytes promised to living servers that have not answered yet. Notes of dead ones are removed."""
    total = 0
    for note in folder.glob("*.json"):
        if note.stem == but:
            continue
        lock = FileLock(note.with_suffix(".lock"))
        try:
            with lock.acquire(timeout=0):
                note.unlink(missing_ok=True)  # nobody holds it: its server is gone
                continue
        except Timeout:
            pass
        try:
            total += int(json.loads(note.read_text())["promised"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return total


def admit(
    resolved: Resolved,
    name: str,
    folder: Path,
    *,
    force: bool,
    say: Say,
    host: Callable[[], Host] = measure,
    environ: Mapping[str, str] = os.environ,
) -> Reservation:
    """Judge the start and note it. Raises NotAdmitted with the arithmetic, CannotWrite for the state folder.

    With `force` the reasons are said and kept in the note, which the guard copies into its state.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        gate = FileLock(folder / "gate", timeout=WAIT_S)
        with gate:
            own = FileLock(folder / f"{name}.lock")
            try:
                own.acquire(timeout=0)
            except Timeout:
                raise NotAdmitted(
                    f"{folder / name}.json: a server of this preset on this port is already running; stop it first"
                ) from None
            try:
                return _judge(resolved, name, folder, own, force=force, say=say, host=host, environ=environ)
            except BaseException:
                own.release()
                raise
    except Timeout:
        raise NotAdmitted(f"{folder}/gate: another start has been judged for {WAIT_S:.0f} s") from None
    except OSError as e:
        raise CannotWrite(f"{folder}: {e.strerror or e}; set SPARKSERVE_STATE to a writable folder") from e


def _judge(
    resolved: Resolved,
    name: str,
    folder: Path,
    own: BaseFileLock,
    *,
    force: bool,
    say: Say,
    host: Callable[[], Host],
    environ: Mapping[str, str],
) -> Reservation:
    here = _here()
    free = gpu_free(environ) if here not in (None, "cpu") and not resolved.machine.unified else None
    verdict = decide(resolved, host(), here=here, reserved=promised(folder, name), gpu_free=free)
    for note in verdict.notes:
        say(note)
    if not verdict.admitted:
        if not force:
            raise NotAdmitted(verdict.refusal(resolved.slug))
        for reason in verdict.reasons:
            say(f"admission: started by force although: {reason}")
    copy = environ.get("SPARKSERVE_ADMISSION_FILE")
    made = Reservation(folder / f"{name}.json", _record(resolved, verdict), own, Path(copy) if copy else None)
    made.write()
    return made


def _record(resolved: Resolved, verdict: Admission) -> dict[str, Any]:
    return {
        "slug": resolved.slug,
        "digest": resolved.preset.digest,
        "pid": os.getpid(),
        "time": time.time(),
        "promised": verdict.need,
        "available": verdict.available,
        "forced": list(verdict.reasons),
        "notes": list(verdict.notes),
        "pool_tokens": verdict.pool_tokens,
        "running": verdict.running,
        "state_slots": verdict.state_slots,
    }


def _here() -> str | None:
    try:
        return machines.detect().name
    except ConfigError:
        return None


def gpu_free(environ: Mapping[str, str]) -> int | None:
    """Free bytes of the card the engine will use; None where the driver says [N/A] or nothing."""
    first = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    argv = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", first]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout.strip()
    return int(text) << 20 if done.returncode == 0 and text.isdecimal() and text.isascii() else None
