# ruff: noqa: N818
"""The exit codes of every command, and the errors that carry them."""

from __future__ import annotations

from typing import ClassVar


class SparkError(Exception):
    """An error an operator can act on: one line, printed without a traceback.

    The message says what is wrong, where, and what to do. `exit_code` follows sysexits.h where it has a code.
    """

    exit_code: ClassVar[int] = 1


class CheckFailed(SparkError):
    """The thing that was checked is not good (pair check, verify, contract)."""

    exit_code = 1


class UsageError(SparkError):
    """The command line is wrong: unknown preset, port in use, wrong option."""

    exit_code = 2


class Unavailable(SparkError):
    """A service we depend on (the model hub) does not answer."""

    exit_code = 69


class EngineFailed(SparkError):
    """The engine did not start, or died."""

    exit_code = 70


class CannotWrite(SparkError):
    """Disk full, or the place is not writable."""

    exit_code = 73


class NotAdmitted(SparkError):
    """The memory plan does not fit, or the guard tripped."""

    exit_code = 75


class ConfigError(SparkError):
    """A preset, the environment or a wheel is not right."""

    exit_code = 78


class Interrupted(SparkError):
    """The operator pressed Ctrl-C."""

    exit_code = 130


EXIT_CODES: dict[int, str] = {
    0: "ok",
    1: "the thing that was checked is not good (pair check, verify, contract)",
    2: "usage: unknown command, option or preset; port in use",
    69: "a service we depend on (the model hub) is unavailable",
    70: "the engine did not start, or died",
    73: "cannot write: disk full or place not writable",
    75: "not admitted: the memory plan does not fit, or the guard tripped",
    78: "bad configuration: preset, environment or wheel",
    130: "interrupted (Ctrl-C)",
}
