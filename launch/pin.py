"""Pin a checkpoint at a commit: write its lock, complete, and say what changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from launch.errors import CheckFailed, ConfigError
from launch.files import write_text
from launch.hub import Hub, Repo, list_files, repo_info, with_retries
from launch.locks import LOCK_DIR, Lock, LockedFile, diff, dump_lock, find_lock, lock_name, merge, read_lock

MAX_PLAIN = 64 << 20  # a file outside LFS is small; anything larger is not what it says


@dataclass(frozen=True)
class Pinned:
    """A new lock, where it was written, and how it differs from the lock the preset names now."""

    lock: Lock
    path: Path
    changes: list[str]
    before: str | None


def pin(hub: Hub, repo: Repo, *, now: str | None, directory: Path = LOCK_DIR) -> Pinned:
    """Lock `repo` at its commit from the hub's listing; `now` is the revision pinned so far.

    LFS files bring their SHA-256; the small ones are read and hashed, checked against their git id.
    Raises CheckFailed when a lock of this very commit exists and says otherwise.
    """
    info = repo_info(hub, repo)
    files = [f if f.sha256 else _hash_plain(hub, repo, f) for f in list_files(hub, repo)]
    old = find_lock(repo.repo, now, dirs=[directory]) if now else None
    path = directory / lock_name(repo.repo, repo.revision)
    base = read_lock(path) if path.exists() else Lock(
        repo=repo.repo, revision=repo.revision, license=info.license, partial=True, source=f"pinned from {hub.endpoint}"
    )  # fmt: skip
    lock, _, wrong = merge(base, files, source=f"completed from {hub.endpoint}")
    if wrong:
        raise CheckFailed(
            f"{path.name} and {hub.endpoint} disagree: {'; '.join(wrong[:3])}; the lock stays as it is"
        )
    write_text(path, dump_lock(lock))
    return Pinned(lock, path, diff(old, lock), now)


def _hash_plain(hub: Hub, repo: Repo, f: LockedFile) -> LockedFile:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    if (f.size or 0) > MAX_PLAIN:
        raise ConfigError(f"{repo} {f.path}: {f.size} B outside LFS; not a checkpoint this tool can pin")
    url = hf_hub_url(repo.repo, f.path, revision=repo.revision, endpoint=hub.endpoint)
    headers = build_hf_headers(token=hub.token or False, library_name="sparkserve")

    def ask() -> bytes:
        response = get_session().get(url, headers=headers, timeout=60)
        hf_raise_for_status(response)
        return response.content

    data = with_retries(hub, repo, ask)
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if f.blob_id is not None and git != f.blob_id:
        raise CheckFailed(
            f"{repo} {f.path}: git blob {git}, the listing says {f.blob_id}; use another mirror"
        )
    return f.model_copy(update={"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)})
