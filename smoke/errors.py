"""What stops a smoke run before a verdict: one clear line and the exit code that goes with it."""

from __future__ import annotations

OK = 0
NOT_GOOD = 1  # a check failed
USAGE = 2
ENGINE = 70  # the engine did not start, or died
CANNOT_WRITE = 73
NOT_ADMITTED = 75  # refused by the memory plan, or stopped by the guard
CONFIG = 78  # preset
INTERRUPTED = 130


class SmokeError(Exception):
    """Ends the run. `problem` says what and where, `todo` what to do next."""

    def __init__(self, problem: str, todo: str, code: int = ENGINE, tail: str = "") -> None:
        super().__init__(f"{problem}. {todo}" if todo else problem)
        self.problem = problem
        self.todo = todo
        self.code = code
        self.tail = tail


class CheckFailed(AssertionError):  # noqa: N818  (the verdict's word)
    """A check's condition did not hold. `ident` names the condition; every one has a fault that trips it."""

    def __init__(self, ident: str, problem: str, todo: str) -> None:
        super().__init__(f"[{ident}] {problem}\n  what to do: {todo}")
        self.ident = ident
        self.problem = problem
        self.todo = todo


def expect(ident: str, ok: object, problem: str, todo: str) -> None:
    """Fail the running check unless `ok`.

    `ident` is a literal, unique to this call: the tests read all of them out of the sources and demand,
    for each, a fault of the mock engine that trips exactly it. So an assertion that was dropped or can no
    longer fail is noticed.
    """
    if not ok:
        raise CheckFailed(ident, problem, todo)
