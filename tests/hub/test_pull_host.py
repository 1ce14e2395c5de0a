"""pull and the machine it runs on: full and read-only disks, kills, two at once, caches of other tools."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from launch.errors import CannotWrite
from launch.hub import Hub, Repo, cached_snapshot
from launch.locks import Lock
from launch.verify import ready, verify_files
from tests.hub.mirror import REV, REV2, Fault
from tests.hub.pulling import BIG, ROOT, assert_whole, get


def test_a_read_only_seeded_cache_is_enough(hub, repo, lock, files, mirror, monkeypatch):
    whole = get(hub, repo, lock).lock
    before = {p: p.lstat().st_mtime_ns for p in hub.cache.rglob("*")}
    shutil.rmtree(os.environ["SPARKSERVE_CACHE"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = get(hub, repo, whole)
    assert result.received == []
    assert {p: p.lstat().st_mtime_ns for p in hub.cache.rglob("*")} == before


def test_no_room_is_said_before_anything_moves(hub, repo, lock, mirror, monkeypatch):
    usage = shutil.disk_usage(hub.cache.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _p: usage._replace(free=200_000))
    with pytest.raises(CannotWrite, match=r"needs 0\.00 GB more"):
        get(hub, repo, lock)
    assert mirror.sent[BIG] == 0


def test_a_disk_that_fills_up_midway_is_resumed_later(hub, repo, lock, files, mirror, monkeypatch):
    """ENOSPC in the middle of a shard: named, exit code 73, and the next pull goes on from there."""
    import huggingface_hub.file_download as fd

    real = fd.http_get
    full = {"left": 90_000}

    def http_get(url, temp_file, **kw):
        if BIG not in url or full["left"] <= 0:
            return real(url, temp_file, **kw)

        class Full:
            def __getattr__(self, name):
                return getattr(temp_file, name)

            def write(self, data):
                full["left"] -= len(data)
                if full["left"] <= 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return temp_file.write(data)

        return real(url, Full(), **kw)

    monkeypatch.setattr(fd, "http_get", http_get)
    with pytest.raises(CannotWrite, match=r"disk full.*resumes"):
        get(hub, repo, lock)
    assert not hub.snapshot(repo).exists()
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
    assert mirror.gets(BIG)[-1] is not None  # a Range request


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_real_full_disk(mirror, repo, lock, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("mount is not allowed here")
    try:
        hub = Hub(endpoint=mirror.url, cache=place / "hub", attempts=2, wait=0)
        usage = shutil.disk_usage(place)
        with pytest.MonkeyPatch.context() as mp:  # the check up front would refuse: look past it
            mp.setattr(shutil, "disk_usage", lambda _p: usage._replace(free=1 << 30))
            with pytest.raises(CannotWrite, match="disk full"):
                get(hub, repo, lock)
        assert not hub.snapshot(repo).exists()
        with pytest.raises(CannotWrite, match="must stay free"):
            get(hub, repo, lock)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_killed_in_mid_write_then_run_again(hub, repo, lock, files, mirror):
    """SIGKILL while a shard arrives: nothing is served, and the next pull resumes it."""
    mirror.faults[BIG] = Fault("stall", at=200_000)
    code = textwrap.dedent(
        f"""
        import huggingface_hub.constants as c
        c.DOWNLOAD_CHUNK_SIZE = 4096
        from pathlib import Path
        from launch.hub import Hub, Repo
        from launch.locks import Lock
        from launch.pull import pull
        pull(Hub(endpoint={mirror.url!r}, cache=Path({str(hub.cache)!r})), Repo("acme/tiny", {REV!r}),
             Lock(repo="acme/tiny", revision={REV!r}, partial=True, source="t"), min_free=0)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        staging, sha = hub.folder("acme/tiny") / "blobs", hashlib.sha256(files[BIG]).hexdigest()
        deadline = threading.Event()
        for _ in range(600):
            big = list(staging.glob(f"{sha}*.incomplete")) if staging.exists() else []
            if big and big[0].stat().st_size >= 100_000:
                break
            assert child.poll() is None, "the pull ended before it could be killed"
            deadline.wait(0.05)
        else:
            pytest.fail("the pull never got far enough")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    mirror.gate.set()
    assert not hub.snapshot(repo).exists()
    assert cached_snapshot(hub, repo) is None
    mirror.requests.clear()
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
    assert mirror.gets(BIG)[0] is not None
    assert int(mirror.gets(BIG)[0].removeprefix("bytes=").rstrip("-")) >= 100_000


def test_two_pulls_at_once_fetch_each_file_once(hub, repo, lock, files, mirror):
    mirror.faults[BIG] = Fault("trickle")
    errors: list[Exception] = []

    def one() -> None:
        try:
            get(hub, repo, lock)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert errors == []
    assert_whole(hub, repo, files)
    assert mirror.sent[BIG] == len(files[BIG])


def test_a_partial_snapshot_of_another_tool_is_completed(hub, repo, lock, files):
    folder = hub.snapshot(repo)
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(files["config.json"])  # a copy, as caches without links hold it
    get(hub, repo, lock)
    for path, data in files.items():
        assert (folder / path).read_bytes() == data


def test_a_snapshot_is_whole_or_absent_even_if_linking_fails(hub, repo, lock, files, monkeypatch):
    """The last step fails half-way: nothing under snapshots/, and the next run finishes from the blobs."""
    import launch.pull as module

    real, calls = module._Job._link, []

    def link(self, pointer, blob):
        calls.append(pointer)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, pointer, blob)

    monkeypatch.setattr(module._Job, "_link", link)
    with pytest.raises(CannotWrite):
        get(hub, repo, lock)
    assert not hub.snapshot(repo).exists()
    monkeypatch.setattr(module._Job, "_link", real)
    assert get(hub, repo, lock).received == []
    assert_whole(hub, repo, files)


def test_a_cache_never_hashed_here_is_not_ready(hub, repo, lock):
    whole = get(hub, repo, lock).lock
    assert ready(hub, repo, whole)
    shutil.rmtree(os.environ["SPARKSERVE_CACHE"])
    assert not ready(hub, repo, Lock(repo="acme/tiny", revision=REV, partial=True, source="t"))
    assert not ready(hub, repo, None)
    verify_files(hub, repo, whole)
    assert ready(hub, repo, whole)


@pytest.mark.skipif(os.geteuid() != 0, reason="a read-only mount needs root")
def test_a_really_read_only_cache(mirror, repo, lock, files, tmp_path):
    """Seeded, then mounted read-only: complete, it serves; incomplete, it says where to write instead."""
    place = tmp_path / "seed"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mount is not allowed here")
    try:
        hub = Hub(endpoint=mirror.url, cache=place / "hub", attempts=2, wait=0)
        whole = get(hub, repo, lock).lock
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, capture_output=True)
        assert get(hub, repo, whole).received == []
        assert get(hub, repo, lock).received == []  # a partial lock asks the hub, and still writes nothing
        mirror.repos["acme/tiny"].revision = REV2
        with pytest.raises(CannotWrite, match=r"Read-only file system.*HF_HUB_CACHE"):
            get(hub, Repo("acme/tiny", REV2), Lock(repo="acme/tiny", revision=REV2, partial=True, source="t"))
    finally:
        subprocess.run(["umount", str(place)], check=True)
