"""Unified diffs: parse and apply, on bytes, without a `patch` binary.

Stricter than patch(1) on purpose: every context and removed line must match exactly (no fuzz), a hunk may
sit elsewhere than its header says only when it matches in exactly one place, and a file is changed wholly
or not at all. The libraries looked at either only parse (unidiff) or call patch(1) or allow fuzz
(whatthepatch, patch-ng), and the tool has to run in a container build with nothing but Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from patches.errors import ConfigError, DoesNotApply

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: ?(.*))?$")
_UNSUPPORTED = (b"GIT binary patch", b"Binary files ", b"rename from ", b"copy from ", b"old mode ")
_NO_NEWLINE = b"\\ "

Reader = Callable[[str], bytes | None]
"""Text of a file by its path, or None when there is none."""


@dataclass(frozen=True)
class Hunk:
    """One hunk: the lines it expects and the lines it leaves, line ends included."""

    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    section: str = ""
    index: int = 1  # 1-based place in its file's patch

    @property
    def label(self) -> str:
        return (
            f"hunk {self.index} (@@ -{self.old_start},{len(self.old)} +{self.new_start},{len(self.new)} @@)"
        )

    def reversed(self) -> Hunk:
        return Hunk(self.new_start, self.old_start, self.new, self.old, self.section, self.index)


@dataclass(frozen=True)
class FilePatch:
    """What one patch does to one file. `creates`/`deletes` are those of /dev/null headers."""

    path: str
    hunks: tuple[Hunk, ...]
    creates: bool = False
    deletes: bool = False

    def reversed(self) -> FilePatch:
        return FilePatch(self.path, tuple(h.reversed() for h in self.hunks), self.deletes, self.creates)


@dataclass(frozen=True)
class Applied:
    """The text after a patch (None: the file is gone) and the hunks found away from their line."""

    text: bytes | None
    offsets: dict[int, int] = field(default_factory=dict)  # hunk index -> lines away


def parse(data: bytes, name: str) -> tuple[FilePatch, ...]:
    """The files a unified diff touches, in order. `name` is the patch's, for messages.

    Text between files (commit messages, index lines, mail signatures) is skipped. Binary, rename, copy and
    mode changes, unsafe paths and a file named twice are refused.
    """
    lines = split_lines(data)
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNSUPPORTED):
            raise ConfigError(
                f"{name}: line {at + 1}: only text changes are supported: {_text(line.rstrip())}"
            )
        if line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            patch, at = _parse_file(lines, at, name)
            if patch.path in {f.path for f in files}:
                raise ConfigError(f"{name}: {patch.path} appears twice")
            files.append(patch)
        elif _HUNK.match(line.rstrip(b"\r\n")):
            raise ConfigError(f"{name}: line {at + 1}: a hunk without --- and +++ lines before it")
        else:
            at += 1
    if not files:
        raise ConfigError(f"{name}: no unified diff in it")
    return tuple(files)


def _parse_file(lines: list[bytes], at: int, name: str) -> tuple[FilePatch, int]:
    old, new = _header_path(lines[at], name), _header_path(lines[at + 1], name)
    if old is None and new is None:
        raise ConfigError(f"{name}: line {at + 1}: both sides are /dev/null")
    if old is not None and new is not None and old != new:
        raise ConfigError(f"{name}: line {at + 1}: renames are not supported ({old} -> {new})")
    path = new if new is not None else old
    assert path is not None
    at += 2
    hunks: list[Hunk] = []
    while at < len(lines) and (match := _HUNK.match(lines[at].rstrip(b"\r\n"))):
        hunk, at = _parse_hunk(lines, at, match, len(hunks) + 1, f"{name}: {path}")
        if hunks and hunk.old_start < hunks[-1].old_start + len(hunks[-1].old):
            raise ConfigError(f"{name}: {path}: {hunk.label} overlaps the one before or is out of order")
        hunks.append(hunk)
    if not hunks:
        raise ConfigError(f"{name}: {path}: no hunks")
    stray = lines[at] if at < len(lines) else b"\n"
    if stray[:1] in {b"+", b"-", b" "} and not stray.startswith((b"--- ", b"-- ")):
        raise ConfigError(f"{name}: {path}: {hunks[-1].label} holds more lines than its header says")
    return FilePatch(path, tuple(hunks), creates=old is None, deletes=new is None), at


def _parse_hunk(
    lines: list[bytes], at: int, match: re.Match[bytes], index: int, where: str
) -> tuple[Hunk, int]:
    old_start, new_start = int(match[1]), int(match[3])
    old_left, new_left = int(match[2] or 1), int(match[4] or 1)
    section = _text(match[5] or b"")
    label = f"{where}: hunk {index} ({_text(lines[at].rstrip())})"
    old: list[bytes] = []
    new: list[bytes] = []
    at += 1
    while old_left or new_left:
        if at >= len(lines):
            raise ConfigError(f"{label}: the patch ends inside it")
        kind, body = lines[at][:1], lines[at][1:]
        if kind == b"\n" or lines[at] == b"\r\n":  # editors strip the one blank of an empty context line
            kind, body = b" ", lines[at]
        at += 1
        if at < len(lines) and lines[at].startswith(_NO_NEWLINE):
            body = body.removesuffix(b"\n")
            at += 1
        if kind in {b" ", b"-"}:
            old.append(body)
            old_left -= 1
        if kind in {b" ", b"+"}:
            new.append(body)
            new_left -= 1
        if kind not in {b" ", b"-", b"+"} or old_left < 0 or new_left < 0:
            raise ConfigError(f"{label}: its lines do not add up to its header")
    return Hunk(old_start, new_start, tuple(old), tuple(new), section, index), at


def _header_path(line: bytes, name: str) -> str | None:
    raw = _text(line[4:]).rstrip("\r\n").split("\t")[0]
    if raw == "/dev/null":
        return None
    if raw.startswith('"') or "\\" in raw:
        raise ConfigError(f"{name}: quoted path {raw} is not supported")
    if not raw.startswith(("a/", "b/")):
        raise ConfigError(f"{name}: path {raw!r} must start with a/ or b/")
    path = raw[2:]
    if not path or path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ConfigError(f"{name}: unsafe path {raw!r}")
    return path


def apply_file(patch: FilePatch, source: bytes | None) -> Applied:
    """The text of one file after its patch. `source` is None where there is no such file.

    Raises DoesNotApply, naming file and hunk. `source` is never changed.
    """
    if patch.creates:
        if source is not None:
            raise DoesNotApply(patch.path, "", "the patch creates it, but it exists already")
    elif source is None:
        raise DoesNotApply(patch.path, "", "no such file")
    lines = split_lines(source or b"")
    out: list[bytes] = []
    offsets: dict[int, int] = {}
    taken, drift = 0, 0  # source lines consumed; how far the previous hunk was from its header
    for hunk in patch.hunks:
        # "@@ -N,0" names the line after which to insert, everything else the first line of the block.
        expected = hunk.old_start - 1 + drift if hunk.old else hunk.old_start + drift
        at = _locate(lines, hunk, expected, taken, patch.path)
        drift += at - expected
        if drift:
            offsets[hunk.index] = drift
        out += lines[taken:at]
        out += hunk.new
        taken = at + len(hunk.old)
        rest = len(lines) - taken
        if rest and hunk.new and not hunk.new[-1].endswith(b"\n"):
            raise DoesNotApply(patch.path, hunk.label, "it ends the file, but the file goes on after it")
    out += lines[taken:]
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise DoesNotApply(patch.path, "", "the result would join two lines (no newline at end of file)")
    text = b"".join(out)
    if patch.deletes:
        if text:
            raise DoesNotApply(patch.path, "", "the patch deletes the file, but it holds other lines")
        return Applied(None, offsets)
    return Applied(text, offsets)


def _locate(lines: list[bytes], hunk: Hunk, expected: int, start: int, path: str) -> int:
    block = list(hunk.old)
    if not block:
        # Nothing to compare with: only an empty file is safe to insert into.
        if lines:
            raise DoesNotApply(path, hunk.label, "it has no context lines, so its place cannot be checked")
        return 0
    size = len(block)
    if expected >= start and lines[expected : expected + size] == block:
        return expected
    found = [
        i
        for i in range(start, len(lines) - size + 1)
        if lines[i] == block[0] and lines[i : i + size] == block
    ]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(str(i + 1) for i in found[:4])
        reason = f"it matches in {len(found)} places (lines {places}) and none is line {expected + 1}"
        raise DoesNotApply(path, hunk.label, reason)
    raise DoesNotApply(path, hunk.label, _why_not(lines, block, start))


def _why_not(lines: list[bytes], block: list[bytes], start: int) -> str:
    """The first difference at the place that is most like the block, for the message."""
    best, at = 0, -1
    for i in range(start - len(block) + 1, len(lines)):
        alike = sum(0 <= i + k < len(lines) and lines[i + k] == want for k, want in enumerate(block))
        if alike > best:
            best, at = alike, i
    if at < 0:
        return "context not found, no line of it"
    for k, want in enumerate(block):
        line = at + k
        if not start <= line < len(lines):
            return (
                f"context not found: nearest is line {max(at, 0) + 1}, where the file (or what is left) ends"
            )
        if lines[line] != want:
            return (
                f"context not found: nearest ({best} of {len(block)} lines) differs in line {line + 1}: "
                f"should be {_show(want)}, is {_show(lines[line])}"
            )
    return "context not found"


def _show(line: bytes) -> str:
    text = _text(line.rstrip(b"\r\n")).strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def hunk_states(patch: FilePatch, source: bytes | None) -> list[tuple[Hunk, str]]:
    """For a patch that does not fit as a whole: each hunk alone applies / absorbed / fails: why."""
    states = []
    for hunk in patch.hunks:
        one = FilePatch(patch.path, (hunk,))
        try:
            apply_file(one, source)
            state = "applies"
        except DoesNotApply as e:
            state = f"fails: {e.reason}"
            try:
                apply_file(one.reversed(), source)
                state = "absorbed"
            except DoesNotApply:
                pass
        states.append((hunk, state))
    return states


def apply(files: tuple[FilePatch, ...], read: Reader, name: str) -> dict[str, Applied]:
    """Every file of a patch, all or nothing; raises DoesNotApply naming patch, file and hunk."""
    done: dict[str, Applied] = {}
    for patch in files:
        try:
            done[patch.path] = apply_file(patch, read(patch.path))
        except DoesNotApply as e:
            raise e.of(name) from None
    return done


def reverse(files: tuple[FilePatch, ...]) -> tuple[FilePatch, ...]:
    return tuple(f.reversed() for f in files)


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends. Only \\n ends a line: a lone \\r or form feed is text, as for diff(1)."""
    parts = data.split(b"\n")
    lines = [p + b"\n" for p in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
