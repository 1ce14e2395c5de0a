"""A preset's checkpoints as pinned repositories with their locks, and whether they may be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch.errors import CheckFailed, ConfigError
from launch.hub import Hub, Repo, default_cache
from launch.locks import LOCK_DIR, Lock, find_lock, merge, read_lock
from launch.paths import cache_dir
from launch.preset import Checkpoint, Preset
from launch.verify import ready, verify_files

LEARNT_DIR = "locks"  # below the user's cache folder: what pulls have learnt


def checkpoints(preset: Preset) -> list[tuple[str, Checkpoint]]:
    """(role, checkpoint) of what the preset loads; MTP layers inside the target are not a checkpoint."""
    found: list[tuple[str, Checkpoint]] = [("target", preset.target)]
    if preset.draft is not None and not preset.draft.in_target:
        found.append(("draft", preset.draft))
    return found


def pinned_repo(role: str, checkpoint: Checkpoint) -> Repo:
    """The repository and commit of a checkpoint that has them."""
    assert checkpoint.repo is not None
    assert checkpoint.revision is not None
    return Repo(checkpoint.repo, checkpoint.revision, role)


def best_lock(repo: Repo, checkpoint: Checkpoint) -> Lock:
    """The lock the preset names (or the repository's for this commit), completed by what pulls here learnt.

    ConfigError when the preset names the lock of another commit or repository.
    """
    if checkpoint.lock:
        ours: Lock | None = read_lock(LOCK_DIR.parent / checkpoint.lock)
    else:
        ours = find_lock(repo.repo, repo.revision)
    if ours is None:
        ours = Lock(
            repo=repo.repo, revision=repo.revision, license=checkpoint.license, partial=True, source="no lock"
        )
    if (ours.repo.lower(), ours.revision) != (repo.repo.lower(), repo.revision):
        raise ConfigError(
            f"{repo.role}.lock is for {ours.repo}@{ours.revision[:8]}, the preset pins {repo}; "
            f"run `sparkserve pin --role {repo.role} --revision {repo.revision}`"
        )
    learnt = find_lock(repo.repo, repo.revision, dirs=[cache_dir() / LEARNT_DIR])
    if learnt is None or not ours.partial:
        return ours
    merged, _, wrong = merge(ours, learnt.files, source="learnt by an earlier pull")
    return ours if wrong else merged


def ensure_served(
    preset: Preset, *, cache: Path | None = None, say: Callable[[str], None] = lambda _text: None
) -> bool:
    """Make sure that every hub checkpoint of `preset` is whole and verified in the cache, without network.

    What was verified before and has not changed costs a stat per file; the first time (a pre-seeded cache)
    every file is hashed. Returns whether there was any hub checkpoint. Raises ConfigError (not pulled) or CheckFailed
    (a file is not what the lock states): a wrong byte is never served.
    """
    hub = Hub(endpoint="", cache=(cache or default_cache()).absolute())
    found = [(role, c) for role, c in checkpoints(preset) if c.repo is not None]
    for role, checkpoint in found:
        repo = pinned_repo(role, checkpoint)
        lock = best_lock(repo, checkpoint)
        if ready(hub, repo, lock):
            continue
        if not hub.snapshot(repo).is_dir():
            raise ConfigError(f"{role} {repo} is not in {hub.cache}; run `sparkserve pull {preset.name}`")
        say(f"verifying {role} {repo} (first time here, or changed since)")
        bad = [r for r in verify_files(hub, repo, lock) if r.state in ("missing", "wrong")]
        if bad:
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise CheckFailed(
                f"{role} {repo}: {bad[0].path} is {bad[0].state}: {bad[0].detail}{more}; "
                f"run `sparkserve pull {preset.name}`"
            )
    return bool(found)
