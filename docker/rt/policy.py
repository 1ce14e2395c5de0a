"""What happens when the server ends: start it again, or end the container, and with which exit code. Pure.

Exit codes of the container: 0 stopped on request, 70 the engine failed, 75 not admitted or the guard tripped, 78 bad
configuration. A start that fails is tried once more; a server that had answered may crash `crashes` times an `hour`. The
waits between starts double, so that a crash loop neither burns the machine nor hides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STOPPED, ENGINE_FAILED, NOT_ADMITTED, BAD_CONFIG = 0, 70, 75, 78
# What `sparkserve serve` ends with, and what that means for a container: usage and an unwritable place are configuration.
FINAL = {2: BAD_CONFIG, 73: BAD_CONFIG, 78: BAD_CONFIG, 75: NOT_ADMITTED}


@dataclass(frozen=True)
class Budget:
    """How many ends are borne, the server's and (within a minute) the guard's. Seconds."""

    failed_starts: int = 2
    crashes: int = 5
    window_s: float = 3600.0
    wait_s: float = 2.0
    longest_wait_s: float = 60.0
    guard_ends: int = 5


@dataclass(frozen=True)
class Again:
    """Start the server after `wait_s` seconds."""

    wait_s: float
    why: str


@dataclass(frozen=True)
class End:
    """End the container with `code`."""

    code: int
    why: str


@dataclass
class Keeper:
    """Decide on each end of the server, in order."""

    budget: Budget = field(default_factory=Budget)
    _failed: int = 0
    _crashes: list[float] = field(default_factory=list)
    _guard_ends: list[float] = field(default_factory=list)

    def guard_ended(self, code: int, now: float) -> Again | End | None:
        """The guard's own ends: a bad setting, or one end after another, and nothing may be served unguarded.

        None: it ended as it should (told to stop, or tripped), and the server's end decides.
        """
        if code in FINAL and code != NOT_ADMITTED:
            return End(FINAL[code], f"the guard cannot run (exit code {code})")
        if code in (0, NOT_ADMITTED):
            return None
        self._guard_ends = [t for t in self._guard_ends if now - t < 60] + [now]
        if len(self._guard_ends) < self.budget.guard_ends:
            return Again(0.0, f"the guard ended (exit code {code})")
        return End(
            ENGINE_FAILED, f"the guard ended {len(self._guard_ends)} times within a minute (exit code {code})"
        )

    def server_ended(
        self, code: int, *, was_ready: bool, tripped: str | None, wedged: bool, now: float
    ) -> Again | End:
        """`code`: what the server's process ended with (negative: killed by that signal); `now`: monotonic seconds."""
        if tripped:
            return End(NOT_ADMITTED, f"the guard stopped the server: {tripped}")
        if code in FINAL:
            return End(
                FINAL[code], f"the server ended with exit code {code}, which starting again would not mend"
            )
        if was_ready:
            return self._crashed(code, wedged, now)
        self._failed += 1
        if self._failed >= self.budget.failed_starts:
            return End(ENGINE_FAILED, f"the server did not start in {self._failed} tries (exit code {code})")
        return Again(self.budget.wait_s, f"the server did not start (exit code {code})")

    def _crashed(self, code: int, wedged: bool, now: float) -> Again | End:
        self._failed = 0
        self._crashes = [t for t in self._crashes if now - t < self.budget.window_s] + [now]
        n = len(self._crashes)
        what = "hung" if wedged else f"ended while serving (exit code {code})"
        if n > self.budget.crashes:
            return End(
                ENGINE_FAILED, f"the server {what}; {n} times within {self.budget.window_s / 60:.0f} minutes"
            )
        wait = min(self.budget.longest_wait_s, self.budget.wait_s * 2 ** (n - 1))
        return Again(wait, f"the server {what}; {n} of {self.budget.crashes} within an hour")
