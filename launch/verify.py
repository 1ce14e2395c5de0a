"""Does what lies in the cache have the size and SHA-256 the lock states?

Hashing 22 GB takes a minute, so a file that was hashed once and has the same inode, size and
modification time is not hashed again, unless asked. Those stamps lie in the user's cache folder, not
beside the model: a read-only, pre-seeded cache stays untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launch.errors import CannotWrite
from launch.files import write_text
from launch.hub import Hub, Repo
from launch.locks import Lock, LockedFile, lock_name
from launch.paths import cache_dir

CHUNK = 8 << 20
Progress = Callable[[int], None]


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file, hex. `progress` receives the bytes of each chunk."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
    return digest.hexdigest()


def git_blob_id(path: Path) -> str:
    """The git object id of a file's content: how the hub names files that are not in LFS."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def content_problem(path: Path, want: LockedFile, sha256: str) -> str | None:
    """What is wrong with the bytes at `path` whose SHA-256 is `sha256`, or None."""
    size = path.stat().st_size
    if want.size is not None and size != want.size:
        return f"size {size} B, expected {want.size} B"
    if want.sha256 is not None and sha256 != want.sha256:
        return f"sha256 {sha256}, expected {want.sha256}"
    if want.sha256_prefix is not None and not sha256.startswith(want.sha256_prefix):
        return f"sha256 {sha256}, expected {want.sha256_prefix}..."
    if want.sha256 is None and want.blob_id is not None and git_blob_id(path) != want.blob_id:
        return f"git blob {git_blob_id(path)}, expected {want.blob_id}"
    return None


@dataclass
class Stamps:
    """Files already hashed, by real path: what they were when they were hashed."""

    path: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, repo: Repo) -> Stamps:
        """The stamps of one repository at one commit; empty when there are none or they are unreadable."""
        path = cache_dir() / "verified" / lock_name(repo.repo, repo.revision)
        try:
            entries = json.loads(path.read_text())
        except (OSError, ValueError):
            entries = {}
        return cls(path, entries if isinstance(entries, dict) else {})

    def get(self, file: Path) -> str | None:
        """The SHA-256 recorded for `file` if it has not changed since."""
        entry = self.entries.get(os.path.realpath(file))
        if entry is None:
            return None
        same = {k: entry.get(k) for k in ("ino", "size", "mtime_ns")} == _identity(file)
        return str(entry["sha256"]) if same and "sha256" in entry else None

    def put(self, file: Path, sha256: str) -> None:
        """Record `sha256` for `file` as it is now."""
        self.entries[os.path.realpath(file)] = {**_identity(file), "sha256": sha256}

    def save(self) -> None:
        """Write the stamps. A place that cannot be written only costs hashing again later."""
        try:
            write_text(self.path, json.dumps(self.entries, indent=1, sort_keys=True) + "\n")
        except CannotWrite:
            return


def _identity(file: Path) -> dict[str, int]:
    s = file.stat()
    return {"ino": s.st_ino, "size": s.st_size, "mtime_ns": s.st_mtime_ns}


@dataclass(frozen=True)
class FileReport:
    """One file of a verification: `ok`, `missing`, `wrong`, or `unlocked` (no hash to compare with)."""

    path: str
    state: str
    detail: str = ""
    sha256: str | None = None
    size: int | None = None


def verify_files(
    hub: Hub,
    repo: Repo,
    lock: Lock,
    *,
    rehash: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> list[FileReport]:
    """Check every file of the snapshot, and every file of the lock, without the network.

    `rehash` ignores the stamps. `progress` receives (path, bytes hashed).
    """
    folder = hub.snapshot(repo)
    stamps = Stamps.load(repo)
    locked = lock.by_path()
    present = {p.relative_to(folder).as_posix() for p in _files(folder)} if folder.is_dir() else set()
    reports = []
    for path in sorted(locked.keys() | present):
        file, want = folder / path, locked.get(path, LockedFile(path=path))
        if path not in present or not file.is_file():
            reports.append(FileReport(path, "missing", "not in the cache"))
            continue
        sha = None if rehash else stamps.get(file)
        if sha is None:
            sha = file_sha256(file, partial(progress, path) if progress else None)
            stamps.put(file, sha)
        problem = content_problem(file, want, sha)
        anchored = want.sha256 or want.sha256_prefix or want.blob_id
        state = "wrong" if problem else "ok" if anchored else "unlocked"
        reports.append(FileReport(path, state, problem or "", sha, file.stat().st_size))
    stamps.save()
    return reports


def _files(folder: Path) -> Iterable[Path]:
    return (p for p in folder.rglob("*") if p.is_symlink() or p.is_file())


def ready(hub: Hub, repo: Repo, lock: Lock | None) -> bool:
    """Whether `repo` can be served offline: snapshot whole, sizes as locked, nothing changed since hashing.

    Cheap (stat only): for `serve` at start. A file that was never hashed here makes it False.
    """
    folder = hub.snapshot(repo)
    if not folder.is_dir():
        return False
    stamps = Stamps.load(repo)
    wanted = {f.path: f for f in lock.files} if lock else {}
    files = {p.relative_to(folder).as_posix(): p for p in _files(folder)}
    if not files or wanted.keys() - files.keys():
        return False
    for path, file in files.items():
        if not file.is_file():
            return False
        sha = stamps.get(file)
        if sha is None or content_problem(file, wanted.get(path, LockedFile(path=path)), sha):
            return False
    return True
