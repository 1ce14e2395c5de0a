"""Bring the files of one repository at one commit into the cache, whole and verified, or not at all.

huggingface_hub 1.x writes each download to a file of its own and deletes it when the transfer fails, so a
killed 10 GB shard starts again from nothing, and it compares sizes, not hashes. Here a shard is received
into a staging file under a lock (resumed by the hub client's own `http_get`), hashed, and only then renamed
to its blob. A new snapshot is assembled aside and renamed into place when its last file is verified: a
snapshot folder that exists is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from launch.errors import CannotWrite, CheckFailed, SparkError, Unavailable
from launch.files import write_text
from launch.hub import Hub, Repo, describe, list_files, offline, repo_info, retry_after, transient
from launch.locks import Lock, LockedFile, dump_lock, lock_name, merge
from launch.paths import cache_dir
from launch.pinned import LEARNT_DIR
from launch.verify import Stamps, content_problem, file_sha256, verify_files

MIN_FREE = 2 << 30  # bytes left on the disk after the download


class Reporter(Protocol):
    """Receives progress. Methods are called from several threads."""

    def start(self, files: list[LockedFile]) -> None:
        """Files that will be received, with sizes in bytes."""

    def advance(self, path: str, received: int) -> None:
        """`received` more bytes of `path` are on disk (negative: they were dropped)."""

    def note(self, text: str) -> None:
        """One line worth reading."""


class Silent:
    """A reporter that says nothing but remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, files: list[LockedFile]) -> None:
        """Ignore."""

    def advance(self, path: str, received: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Remember."""
        self.notes.append(text)


@dataclass
class Pulled:
    """What a pull did. `learnt` is what the lock did not know; `lock_file` where that was written."""

    snapshot: Path
    lock: Lock
    received: list[str] = field(default_factory=list)
    refetched: list[str] = field(default_factory=list)
    learnt: list[str] = field(default_factory=list)
    lock_file: Path | None = None
    moved_to: str | None = None


class _CancelledError(Exception):
    """Another file failed, or the operator pressed Ctrl-C."""


def pull(
    hub: Hub,
    repo: Repo,
    lock: Lock,
    *,
    jobs: int = 4,
    min_free: int = MIN_FREE,
    reporter: Reporter | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Pulled:
    """Make `hub.snapshot(repo)` whole. Safe to run twice at once, and again after a kill.

    Raises CheckFailed (content is not what the lock says), Unavailable (hub), CannotWrite (disk),
    ConfigError (repository or revision is not there). What is already verified stays.
    """
    reporter = reporter or Silent()
    if not lock.partial and _verified(hub, repo, lock):
        return Pulled(hub.snapshot(repo), lock)  # whole and known: no network, no write
    if offline():
        raise Unavailable(
            f"{repo} is not complete in {hub.cache} and HF_HUB_OFFLINE is set; "
            "pull once with the network, or mount a cache that holds it"
        )
    info = repo_info(hub, repo, sleep=sleep)
    moved = info.name if info.name.lower() != repo.repo.lower() else None
    if moved:
        reporter.note(f"{repo.repo} has moved to {moved}: the content is the same; edit {repo.role}.repo")
    whole, learnt, wrong = merge(lock, list_files(hub, repo, sleep=sleep), source=f"tree of {hub.endpoint}")
    if wrong:
        raise CheckFailed(
            f"{hub.endpoint} and the lock of {repo} disagree: {'; '.join(wrong[:3])}; "
            "do not use this mirror, or review the revision and run `sparkserve pin`"
        )
    if _verified(hub, repo, whole):
        return _learn(Pulled(hub.snapshot(repo), whole, moved_to=moved), hub, repo, learnt)
    job = _Job(hub, repo, reporter, sleep, Stamps.load(repo))
    with _repo_lock(hub, repo, reporter):
        result = job.run(whole, jobs, min_free)
    result.moved_to = moved
    return _learn(result, hub, repo, learnt)


def _verified(hub: Hub, repo: Repo, lock: Lock) -> bool:
    reports = verify_files(hub, repo, lock)
    return bool(reports) and all(r.state in ("ok", "unlocked") for r in reports)


def _learn(result: Pulled, hub: Hub, repo: Repo, learnt: list[str]) -> Pulled:
    """Fill in the hashes the hub does not state (small files) and keep the complete lock for the user."""
    shas = {r.path: r for r in verify_files(hub, repo, result.lock)}
    files = []
    for known in result.lock.files:
        f, sha = known, shas[known.path].sha256
        if f.sha256 is None and sha is not None:
            f = f.model_copy(update={"sha256": sha, "sha256_prefix": None})
            learnt.append(f"{f.path}: sha256 {sha}")
        files.append(f)
    complete = all(f.complete for f in files)
    result.lock = result.lock.model_copy(update={"files": tuple(files), "partial": not complete})
    result.learnt = sorted(set(learnt))
    if learnt:
        path = cache_dir() / LEARNT_DIR / lock_name(repo.repo, repo.revision)
        try:
            write_text(path, dump_lock(result.lock))
            result.lock_file = path
        except CannotWrite:
            result.lock_file = None  # a read-only home: it will be learnt again
    return result


def _repo_lock(hub: Hub, repo: Repo, reporter: Reporter) -> Any:
    """One pull of a repository at a time. CannotWrite when the cache is read-only."""
    from filelock import FileLock, Timeout

    path = hub.cache / ".locks" / hub.folder(repo.repo).name / "sparkserve-pull.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            reporter.note(f"another pull of {repo.repo} is running; waiting for it")
            return lock.acquire()
    except OSError as e:
        raise _cannot_write(e, hub.cache, f"{repo} is not complete there") from e


def _cannot_write(e: OSError, where: Path, what: str) -> CannotWrite:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return CannotWrite(
            f"{where}: disk full while receiving {what}; free space and run pull again (it resumes)"
        )
    return CannotWrite(f"{where}: {e.strerror or e} ({what}); set HF_HUB_CACHE to a place you can write")


class _Job:
    """One pull under its lock."""

    def __init__(
        self, hub: Hub, repo: Repo, reporter: Reporter, sleep: Callable[[float], None], stamps: Stamps
    ) -> None:
        self.hub, self.repo, self.reporter, self.sleep, self.stamps = hub, repo, reporter, sleep, stamps
        self.folder = hub.folder(repo.repo)
        self.blobs = self.folder / "blobs"
        self.cancel = threading.Event()
        self.guard = threading.Lock()
        self.result = Pulled(
            hub.snapshot(repo), Lock(repo=repo.repo, revision=repo.revision, partial=True, source="")
        )

    def run(self, lock: Lock, jobs: int, min_free: int) -> Pulled:
        self.result.lock = lock
        try:
            self.blobs.mkdir(parents=True, exist_ok=True)
            missing = [f for f in lock.files if not self._present(f)]
            self._check_disk(missing, min_free)
            self.reporter.start(missing)
            self._receive_all(missing, jobs)
            self._publish(lock)
        except OSError as e:
            raise _cannot_write(e, self.hub.cache, str(self.repo)) from e
        finally:
            self.stamps.save()
        return self.result

    def _blob(self, f: LockedFile) -> Path:
        name = f.blob_id or f.sha256  # as the hub's ETag names them
        assert name is not None
        return self.blobs / name

    def _staging(self, f: LockedFile) -> Path:
        blob = self._blob(f)
        return blob.with_name(blob.name + ".sparkserve.incomplete")

    def _present(self, f: LockedFile) -> bool:
        """Whether the blob is there and right; a wrong one is named and removed."""
        blob, pointer = self._blob(f), self.hub.snapshot(self.repo) / f.path
        if not blob.exists() and pointer.is_file() and not pointer.is_symlink():
            blob = pointer  # a cache without symbolic links holds the bytes in the snapshot itself
        if not blob.is_file():
            blob.unlink(missing_ok=True)  # a dangling link
            return False
        sha = self.stamps.get(blob) or file_sha256(blob)
        problem = content_problem(blob, f, sha)
        if problem is None:
            self.stamps.put(blob, sha)
            return True
        self.reporter.note(f"{f.path} in the cache is damaged ({problem}): removed, fetching it again")
        blob.unlink()
        self.result.refetched.append(f.path)
        return False

    def _check_disk(self, missing: list[LockedFile], min_free: int) -> None:
        have = sum(s.stat().st_size for f in missing if (s := self._staging(f)).exists())
        need = sum(f.size or 0 for f in missing) - have
        free = shutil.disk_usage(self.blobs).free
        if missing and free < need + min_free:
            raise CannotWrite(
                f"{self.hub.cache}: {self.repo} needs {need / 1e9:.2f} GB more and {min_free / 1e9:.2f} GB must "
                f"stay free, but only {free / 1e9:.2f} GB are free; free space or set HF_HUB_CACHE"
            )

    def _receive_all(self, missing: list[LockedFile], jobs: int) -> None:
        from huggingface_hub.utils import logging

        # The client's warnings about retries would break the progress display.
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        # Largest first: the last worker should not be left alone with the big shard.
        queue = sorted(missing, key=lambda f: -(f.size or 0))
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
            futures = [pool.submit(self._receive, f) for f in queue]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:
                self._stop(futures)
                raise
            errors = [e for d in done if (e := d.exception()) and not isinstance(e, _CancelledError)]
            if errors:
                self._stop(futures)
                raise errors[0]

    def _stop(self, futures: list[Any]) -> None:
        self.cancel.set()
        for f in futures:
            f.cancel()

    def _receive(self, f: LockedFile) -> None:
        """Receive one file, verify it, rename it to its blob. A wrong one is fetched once more."""
        staging = self._staging(f)
        for second in (False, True):
            self._transfer(f, staging)
            sha = file_sha256(staging)
            problem = content_problem(staging, f, sha)
            if problem is None:
                blob = self._blob(f)
                with staging.open("rb") as fd:
                    os.fsync(fd.fileno())
                staging.replace(blob)
                with self.guard:
                    self.stamps.put(blob, sha)
                    self.result.received.append(f.path)
                return
            self._drop(f, staging)
            if not second:
                self.reporter.note(f"{f.path} arrived damaged ({problem}): removed, fetching it again")
                with self.guard:
                    self.result.refetched.append(f.path)
        raise CheckFailed(
            f"{self.repo} {f.path}: {problem}, twice; removed. {self.hub.endpoint} does not serve what the "
            "lock states: use another mirror (HF_ENDPOINT)"
        )

    def _drop(self, f: LockedFile, staging: Path) -> None:
        if staging.exists():
            self.reporter.advance(f.path, -staging.stat().st_size)
            staging.unlink()

    def _transfer(self, f: LockedFile, staging: Path) -> None:
        """Fill `staging` up to the file's size, resuming as often as it makes progress."""
        from httpx import TransportError
        from huggingface_hub.errors import HfHubHTTPError

        stalls, pause = 0, self.hub.wait
        if staging.exists() and staging.stat().st_size > (f.size or 0):
            staging.unlink()
        if staging.exists():
            self.reporter.advance(f.path, staging.stat().st_size)
        while True:
            before = staging.stat().st_size if staging.exists() else 0
            if before == f.size and staging.exists():
                return
            error: Exception | None = None
            try:
                self._http_get(f, staging, before)
            except (HfHubHTTPError, TransportError) as e:
                status = getattr(getattr(e, "response", None), "status_code", None)
                if status != 416 and not transient(e):
                    raise describe(e, self.repo, self.hub) from e
                error = e
            except OSError as e:
                if e.errno is not None:
                    raise _cannot_write(e, self.hub.cache, f"{self.repo} {f.path}") from e
                error = e  # the client's own size check: the body ended early
            after = staging.stat().st_size if staging.exists() else 0
            stalls = 0 if after > before else stalls + 1
            if stalls >= self.hub.attempts:
                raise self._gave_up(f, after, error)
            if error is not None:
                asked = retry_after(error)
                if after < (f.size or 0):
                    self.sleep(pause if asked is None else asked)
                pause = self.hub.wait if after > before else min(pause * 2, 8.0)

    def _gave_up(self, f: LockedFile, got: int, error: Exception | None) -> SparkError:
        from httpx import TransportError
        from huggingface_hub.errors import HfHubHTTPError

        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, HfHubHTTPError | TransportError) and status != 416:
            return describe(error, self.repo, self.hub)
        self._drop(f, self._staging(f))
        return CheckFailed(
            f"{self.repo} {f.path}: {self.hub.endpoint} sends {got} of {f.size} B and then ends; removed. "
            "Use another mirror (HF_ENDPOINT)"
        )

    def _http_get(self, f: LockedFile, staging: Path, have: int) -> None:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        if self.cancel.is_set():
            raise _CancelledError
        if (f.size or 0) > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise Unavailable(
                f"{self.repo} {f.path}: {(f.size or 0) / 1e9:.0f} GB; the hub serves files over 50 GB through xet only: "
                f"hf download {self.repo.repo} {f.path} --revision {self.repo.revision}, then run pull again"
            )
        url = hf_hub_url(self.repo.repo, f.path, revision=self.repo.revision, endpoint=self.hub.endpoint)
        headers = build_hf_headers(token=self.hub.token or False, library_name="sparkserve")
        headers["Accept-Encoding"] = "identity"  # a resumed gzip stream would be another file
        with staging.open("r+b" if staging.exists() else "w+b") as out:
            out.seek(0, os.SEEK_END)
            http_get(
                url,
                out,
                resume_size=have,
                headers=headers,
                expected_size=f.size,
                displayed_filename=f.path,
                tqdm_class=_bar(self.reporter, f.path, self.cancel),
            )

    def _publish(self, lock: Lock) -> None:
        """Link every file into the snapshot. A new snapshot folder appears whole, in one rename."""
        final = self.hub.snapshot(self.repo)
        fresh = not final.exists()
        # Same depth below the repository as snapshots/<commit>, so that the relative links stay right.
        place = self.folder / ".sparkserve" / self.repo.revision if fresh else final
        if fresh and place.exists():
            shutil.rmtree(place)
        for f in lock.files:
            self._link(place / f.path, self._blob(f))
        if fresh:
            final.parent.mkdir(parents=True, exist_ok=True)
            place.rename(final)
        self._write_ref()
        self._write_tree(lock)

    def _link(self, pointer: Path, blob: Path) -> None:
        if not blob.exists():
            return  # the bytes lie in the snapshot itself, already verified
        target = os.path.relpath(blob, pointer.parent)
        if pointer.is_symlink() and os.readlink(pointer) == target:  # noqa: PTH115 (as spelt, not resolved)
            return
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = pointer.with_name(f".{pointer.name}.link")
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(target)
        except OSError:
            shutil.copyfile(blob, temporary)  # a file system without symbolic links
        temporary.replace(pointer)

    def _write_ref(self) -> None:
        """Point refs/main here if nothing does yet.

        A download by commit leaves no refs/main, and then any offline look-up without a revision fails
        (the draft's default revision is `main`). One that exists is another tool's and stays.
        """
        ref = self.folder / "refs" / "main"
        if not ref.exists():
            write_text(ref, self.repo.revision)

    def _write_tree(self, lock: Lock) -> None:
        """Leave the listing of this commit where huggingface_hub 1.x keeps it (`trees/<commit>.json`).

        Without it `snapshot_download` of a commit fails offline even when every file is there: it asks the
        hub for the listing first. With it, it also knows when a snapshot is not whole.
        """
        path = self.folder / "trees" / f"{self.repo.revision}.json"
        if path.exists():
            return
        entries = {}
        for f in lock.files:
            entry: dict[str, Any] = {"size": f.size, "blob_id": f.blob_id or f.sha256}
            if f.blob_id is None:
                entry |= {"lfs_sha256": f.sha256, "lfs_size": f.size}
            entries[f.path] = entry
        write_text(path, json.dumps({"format_version": 1, "files": entries}))


def _bar(reporter: Reporter, path: str, cancel: threading.Event) -> type:
    """A class the hub client can use as its progress bar: forwards bytes, and stops when cancelled."""

    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            if cancel.is_set():
                raise _CancelledError
            reporter.advance(path, int(n or 0))

    return Bar
