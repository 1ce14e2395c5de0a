"""Locks: what the files of one checkpoint revision must weigh and hash to.

A lock is data (`launch/locks/<org>-<name>@<rev8>.json`) for one repository at one commit. It lists
files with size and SHA-256. Where the facts give only some of them the lock says `partial: true`; the
first trusted download completes it and the complete copy goes to the user's cache, never silently into
the repository. No hash is invented: a truncated one is kept as `sha256_prefix` and checked as a prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from launch.errors import ConfigError

LOCK_DIR = Path(__file__).parent
SCHEMA_FILE = LOCK_DIR / "schema.json"

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Sha256Prefix = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{6,63}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
RepoId = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]

COMMIT_RE = re.compile(r"^[0-9a-f]{40}$")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LockedFile(_Model):
    """One file: path inside the repository, size in bytes, content hashes.

    `blob_id` is the git object id (SHA-1 of `blob <size>\\0` + content) the hub gives for files that are
    not in LFS; it names the blob in the cache.
    """

    path: str
    size: int | None = Field(default=None, ge=0, description="bytes")
    sha256: Sha256 | None = None
    sha256_prefix: Sha256Prefix | None = None
    blob_id: Commit | None = None

    @field_validator("path")
    @classmethod
    def _relative(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not value or path.is_absolute() or ".." in path.parts or "\\" in value or "\0" in value:
            raise ValueError(f"{value!r} is not a path inside a repository")
        return value

    @property
    def complete(self) -> bool:
        """Whether size and full SHA-256 are known."""
        return self.size is not None and self.sha256 is not None


class Lock(_Model):
    """All that is known about the files of one repository at one commit."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    repo: RepoId
    revision: Commit
    license: str | None = Field(default=None, description="SPDX-like identifier, as the hub spells it")
    partial: bool = Field(description="true when files or hashes are still missing")
    file_count: int | None = Field(default=None, ge=1)
    total_bytes: int | None = Field(default=None, ge=0)
    source: str = Field(description="where these figures come from")
    files: tuple[LockedFile, ...] = ()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def by_path(self) -> dict[str, LockedFile]:
        """Files by their path."""
        return {f.path: f for f in self.files}


def lock_name(repo: str, revision: str) -> str:
    """File name of the lock of `repo` at `revision`: `<org>-<name>@<first 8 hex>.json`, lower case."""
    return f"{repo.replace('/', '-').lower()}@{revision[:8]}.json"


def read_lock(path: Path) -> Lock:
    """Read and check one lock file. ConfigError names the file and the first wrong key."""
    try:
        return Lock.model_validate_json(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"lock {path}: {e.strerror or e}; restore the file from version control") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the file"
        raise ConfigError(
            f"lock {path.name}: {where}: {first['msg']}; write it again with `sparkserve pin`"
        ) from e


def find_lock(repo: str, revision: str, *, dirs: Iterable[Path] = (LOCK_DIR,)) -> Lock | None:
    """The lock of `repo` at `revision` from the first of `dirs` that has one, or None."""
    for directory in dirs:
        path = directory / lock_name(repo, revision)
        if path.is_file():
            lock = read_lock(path)
            if (lock.repo.lower(), lock.revision) != (repo.lower(), revision):
                raise ConfigError(
                    f"lock {path.name} is for {lock.repo}@{lock.revision}, not {repo}@{revision}; "
                    "write it again with `sparkserve pin`"
                )
            return lock
    return None


def dump_lock(lock: Lock) -> str:
    """The lock as the text of its file: sorted files, no empty keys, one trailing newline."""
    data = lock.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["files"] = sorted(data["files"], key=lambda f: f["path"])
    return json.dumps(data, indent=2) + "\n"


def merge(known: Lock, found: Iterable[LockedFile], *, source: str) -> tuple[Lock, list[str], list[str]]:
    """Complete `known` with the listing `found` of the same commit.

    Returns (complete lock, what was learnt, contradictions). A contradiction is a size or hash that
    the lock states and the listing denies; the lock's value is kept. Counts are only reported: who
    published them may have counted otherwise, and each file is checked by itself.
    """
    learnt: list[str] = []
    wrong: list[str] = []
    old = known.by_path()
    files: dict[str, LockedFile] = {}
    for new in found:
        before = old.get(new.path)
        if before is None:
            if not known.partial:
                wrong.append(f"{new.path}: not in the lock")
                continue
            files[new.path] = new
            learnt.append(f"{new.path}: size {new.size}, sha256 {new.sha256}")
            continue
        wrong += _contradictions(before, new)
        got = {k: v for k, v in new.model_dump(exclude_none=True).items() if getattr(before, k) is None}
        got.pop("path", None)
        learnt += [f"{new.path}: {k} {v}" for k, v in got.items() if k != "blob_id"]
        full = before.model_copy(update=got)
        if full.sha256 is not None:
            full = full.model_copy(update={"sha256_prefix": None})
        files[new.path] = full
    wrong += [f"{p}: in the lock, not in the repository" for p in old if p not in files]
    files |= {p: f for p, f in old.items() if p not in files}
    total = sum(f.size or 0 for f in files.values())
    if known.file_count is not None and known.file_count != len(files):
        learnt.append(f"{len(files)} files, where the lock says {known.file_count}")
    if known.total_bytes is not None and known.total_bytes != total:
        learnt.append(f"{total} bytes in all, where the lock says {known.total_bytes}")
    whole = all(f.complete for f in files.values())
    lock = known.model_copy(
        update={
            "files": tuple(files[p] for p in sorted(files)),
            "partial": not whole,
            "file_count": len(files),
            "total_bytes": total,
            "source": known.source if not learnt else f"{known.source}; {source}",
        }
    )
    return lock, learnt, wrong


def _contradictions(lock: LockedFile, new: LockedFile) -> list[str]:
    out = []
    if lock.size is not None and new.size is not None and lock.size != new.size:
        out.append(f"{lock.path}: size {new.size}, the lock says {lock.size}")
    if new.sha256 is not None:
        if lock.sha256 is not None and lock.sha256 != new.sha256:
            out.append(f"{lock.path}: sha256 {new.sha256}, the lock says {lock.sha256}")
        if lock.sha256_prefix is not None and not new.sha256.startswith(lock.sha256_prefix):
            out.append(f"{lock.path}: sha256 {new.sha256}, the lock says {lock.sha256_prefix}...")
    if lock.blob_id is not None and new.blob_id is not None and lock.blob_id != new.blob_id:
        out.append(f"{lock.path}: git blob {new.blob_id}, the lock says {lock.blob_id}")
    return out


def diff(old: Lock | None, new: Lock) -> list[str]:
    """Readable difference between two locks of one repository, a line per file that changed."""
    before = old.by_path() if old else {}
    after = new.by_path()
    lines = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None and b is not None:
            lines.append(f"+ {path}  {b.size} B  {_short(b)}")
        elif b is None and a is not None:
            lines.append(f"- {path}  {a.size} B  {_short(a)}")
        elif a is not None and b is not None and _differs(a, b):
            lines.append(f"~ {path}  {a.size} -> {b.size} B  {_short(a)} -> {_short(b)}")
    return lines


def _differs(a: LockedFile, b: LockedFile) -> bool:
    if a.sha256 and b.sha256:
        return a.sha256 != b.sha256
    if a.sha256_prefix and b.sha256:
        return not b.sha256.startswith(a.sha256_prefix) or (a.size not in (None, b.size))
    return (a.size, a.blob_id) != (b.size, b.blob_id)


def _short(f: LockedFile) -> str:
    return f"sha256 {f.sha256[:12]}" if f.sha256 else f"sha256 {f.sha256_prefix or 'unknown'}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a lock file; `launch/locks/schema.json` is a checked-in copy."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Lock.model_json_schema(by_alias=True),
        "title": "SparkServe checkpoint lock",
    }
