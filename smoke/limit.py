"""One limit for a whole run: what has not ended by then is reported as not run, and the report is still written."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import TracebackType


class TimeUp(BaseException):
    """The limit passed inside a check or a start. Not an Exception, so that no check and no client swallows it."""


class TimeLimit:
    """Rings once, `seconds` after it is entered (None: never), and calls `cut`, which must break requests in flight.

    Inside `interruptible()` the ring raises TimeUp; elsewhere it only sets `passed`. Main thread only: signal.setitimer.
    """

    def __init__(self, seconds: float | None = None, cut: Callable[[], None] = lambda: None) -> None:
        self.seconds, self.cut = seconds, cut
        self.passed = False
        self._inside = False
        self._old: object = None

    @property
    def reason(self) -> str:
        return f"the time limit of {self.seconds:g} s passed"

    def __enter__(self) -> TimeLimit:
        if self.seconds is not None:
            self._old = signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._old)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """The ring may end what runs in here. Raises TimeUp at once when it has rung already."""
        if self.passed:
            raise TimeUp
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _ring(self, *_: object) -> None:
        self.passed = True
        self.cut()
        if self._inside:
            self._inside = False
            raise TimeUp
