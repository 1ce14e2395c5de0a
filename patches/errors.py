# ruff: noqa: N818
"""Errors of the patch tool: one line each, with the exit code of the command."""

from __future__ import annotations

from typing import ClassVar


class PatchError(Exception):
    """Something the operator can act on: says what is wrong, where, and what to do."""

    exit_code: ClassVar[int] = 78


class NotWhole(PatchError):
    """The thing that was checked is not good."""

    exit_code = 1


class Unavailable(PatchError):
    """The package index does not answer."""

    exit_code = 69


class CannotWrite(PatchError):
    """The output place is not writable, or full."""

    exit_code = 73


class ConfigError(PatchError):
    """series.toml, a patch file or a wheel is not right."""

    exit_code = 78


class DoesNotApply(ConfigError):
    """A hunk does not fit. Names patch (when known), file and hunk; nothing has been written."""

    def __init__(self, file: str, hunk: str, reason: str, patch: str = "") -> None:
        self.file, self.hunk, self.reason, self.patch = file, hunk, reason, patch
        super().__init__(": ".join(part for part in (patch, f"{file} {hunk}".strip(), reason) if part))

    def of(self, patch: str) -> DoesNotApply:
        return DoesNotApply(self.file, self.hunk, self.reason, patch)
