"""The guard's state file: what the container's health check, the smoke report and an operator read.

A reader never sees half of it. It is read back at start, so that the low-water mark and the trip that ended the last run
survive a restart.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.files import write_text


class Phase(StrEnum):
    """What HEALTHCHECK answers."""

    LOADING = "loading"
    READY = "ready"
    WEDGED = "wedged"
    TRIPPED = "tripped"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass
class State:
    """Sizes in bytes, times in seconds since the epoch."""

    phase: Phase = Phase.LOADING
    since: float = 0.0
    step: str = ""
    available: int | None = None
    swap_used: int | None = None
    low_water: int | None = None
    available_at_ready: int | None = None
    floor: int = 0
    samples: int = 0
    restarts: int = 0
    hangs: int = 0
    trip: dict[str, str] | None = None
    forced: list[str] = field(default_factory=list)
    kernel_log: bool = False
    pid: int | None = None
    answered: bool = False  # this server (pid) has generated a token

    def move(self, phase: Phase, step: str = "", now: float | None = None) -> None:
        """Enter a phase; `since` changes only when the phase does."""
        if phase is not self.phase or not self.since:
            self.since = time.time() if now is None else now
        self.phase, self.step = phase, step
        self.answered = self.answered or phase is Phase.READY

    def health(self, now: float) -> tuple[int, str]:
        """(HTTP status, one line) for the health check: 200 only when ready."""
        seconds = max(0, int(now - self.since))
        line = f"{self.phase} for {seconds} s"
        if self.step:
            line += f": {self.step}"
        if self.trip:
            line += f" ({self.trip['reason']}: {self.trip['detail']})"
        return (200 if self.phase is Phase.READY else 503), line


def save(path: Path, state: State) -> None:
    """Replace the file; `launch.errors.CannotWrite` when the place is full or not writable."""
    write_text(path, json.dumps(asdict(state), indent=1) + "\n")


def load(path: Path) -> State | None:
    """None when there is none, or when it cannot be read as one."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
        known = {k: v for k, v in raw.items() if k in State.__dataclass_fields__}
        return State(**{**known, "phase": Phase(known.get("phase", "loading"))})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
