"""pull against a real HTTP hub: what arrives is whole and right, or is not there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from launch.errors import CheckFailed, ConfigError, Unavailable
from launch.hub import Hub, Repo, cached_snapshot, list_files, repo_info
from launch.locks import Lock, LockedFile, find_lock
from launch.pull import Silent, pull
from launch.verify import ready, verify_files
from tests.hub.mirror import REV, REV2, Fault, MirrorRepo
from tests.hub.pulling import BIG, SMALL, assert_whole, get


def test_a_pull_brings_every_file_and_completes_the_lock(hub, repo, lock, files, mirror, tmp_path):
    result = get(hub, repo, lock)
    assert_whole(hub, repo, files)
    assert sorted(result.received) == sorted(files)
    assert not result.lock.partial
    for f in result.lock.files:
        assert f.sha256 == hashlib.sha256(files[f.path]).hexdigest()
        assert f.size == len(files[f.path])
    learnt_file = result.lock_file
    assert learnt_file is not None
    assert learnt_file.is_relative_to(tmp_path / "user-cache")
    assert find_lock("acme/tiny", REV, dirs=[learnt_file.parent]) == result.lock
    assert any(line.startswith("config.json: sha256") for line in result.learnt)
    assert not any(BIG in line for line in result.learnt)  # the lock knew it
    assert ready(hub, repo, result.lock)


def test_the_hub_client_finds_the_result_without_network(hub, repo, lock, files):
    """The proof that an offline start works: endpoint dead, HF_HUB_OFFLINE set, by commit and by `main`."""
    get(hub, repo, lock)
    code = textwrap.dedent(
        f"""
        import json
        from huggingface_hub import snapshot_download, hf_hub_download
        out = [snapshot_download("acme/tiny", revision={REV!r}), snapshot_download("acme/tiny"),
               hf_hub_download("acme/tiny", "config.json", revision={REV!r}),
               hf_hub_download("acme/tiny", "config.json")]
        print(json.dumps(out))
        """
    )
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HUB_CACHE": str(hub.cache),
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    by_commit, by_main, config, config_main = json.loads(run.stdout)
    assert Path(by_commit) == Path(by_main) == hub.snapshot(repo)
    assert Path(config).read_bytes() == Path(config_main).read_bytes() == files["config.json"]


def test_without_refs_the_same_lookup_fails(hub, repo, lock):
    """The trap this guards against is real: drop refs/main and `main` cannot be resolved offline."""
    get(hub, repo, lock)
    (hub.folder("acme/tiny") / "refs" / "main").unlink()
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub.cache)}
    code = "from huggingface_hub import snapshot_download; snapshot_download('acme/tiny')"
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode != 0
    assert "LocalEntryNotFoundError" in run.stderr


def test_an_existing_ref_of_another_tool_stays(hub, repo, lock):
    ref = hub.folder("acme/tiny") / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_text(REV2)
    get(hub, repo, lock)
    assert ref.read_text() == REV2


def test_a_second_pull_asks_the_network_nothing(hub, repo, lock, mirror):
    whole = get(hub, repo, lock).lock
    mirror.requests.clear()
    dead = Hub(endpoint="http://127.0.0.1:9", cache=hub.cache, attempts=1)
    again = get(dead, repo, whole)
    assert again.received == []
    assert mirror.requests == []


def test_a_dropped_connection_is_resumed_where_it_broke(hub, repo, lock, files, mirror):
    mirror.faults[BIG] = Fault("drop", at=150_000)
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
    ranges = mirror.gets(BIG)
    assert ranges[0] is None
    resumed = int(ranges[1].removeprefix("bytes=").rstrip("-"))
    assert 100_000 < resumed <= 150_000 + 16384  # the mirror sends in steps of 16 KiB
    assert mirror.sent[BIG] < 1.5 * len(files[BIG])


def test_a_stalled_body_is_resumed(hub, repo, lock, files, mirror, monkeypatch):
    import huggingface_hub.constants as c

    monkeypatch.setattr(c, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    mirror.faults[BIG] = Fault("stall", at=100_000)
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
    assert len(mirror.gets(BIG)) >= 2


def test_a_slow_server_is_waited_for(hub, repo, lock, files, mirror):
    mirror.faults[BIG] = Fault("trickle")
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
    assert mirror.gets(BIG) == [None]


@pytest.mark.parametrize(("status", "after"), [(429, "0"), (503, "0"), (503, None), (500, None)])
def test_a_busy_hub_is_asked_again(hub, repo, lock, files, mirror, status, after):
    mirror.faults[BIG] = Fault("status", times=2, status=status, retry_after=after)
    get(hub, repo, lock)
    assert_whole(hub, repo, files)


def test_retry_after_is_honoured(hub, repo, lock, files, mirror):
    slept: list[float] = []
    mirror.faults[BIG] = Fault("status", status=503, retry_after="7")
    mirror.faults["*api*"] = Fault("status", status=503, retry_after="9")
    pull(hub, repo, lock, min_free=0, sleep=slept.append)
    assert {7.0, 9.0} <= set(slept)
    assert_whole(hub, repo, files)


def test_a_hub_that_stays_busy_is_unavailable(hub, repo, lock, mirror):
    mirror.faults[BIG] = Fault("status", times=99, status=503)
    with pytest.raises(Unavailable, match=r"HTTP 503 .*HF_ENDPOINT"):
        get(hub, repo, lock)
    assert cached_snapshot(hub, repo) is None


def test_a_wrong_byte_is_named_removed_and_fetched_again_once(hub, repo, lock, files, mirror):
    notes = Silent()
    mirror.faults[BIG] = Fault("wrong-byte")
    result = get(hub, repo, lock, notes)
    assert_whole(hub, repo, files)
    assert result.refetched == [BIG]
    assert any(BIG in n and "damaged" in n and "sha256" in n for n in notes.notes)
    assert len(mirror.gets(BIG)) == 2


def test_a_mirror_that_lies_twice_is_refused(hub, repo, lock, mirror):
    mirror.faults[BIG] = Fault("wrong-byte", times=99)
    with pytest.raises(CheckFailed, match=rf"{BIG}: sha256 [0-9a-f]+, expected [0-9a-f]+, twice; removed"):
        get(hub, repo, lock)
    assert not hub.snapshot(repo).exists()
    blobs = hub.folder("acme/tiny") / "blobs"
    assert not list(blobs.glob(hashlib.sha256(mirror.repos["acme/tiny"].files[BIG]).hexdigest() + "*"))


def test_a_wrong_small_file_is_found_by_its_git_hash(hub, repo, lock, files, mirror):
    mirror.faults["config.json"] = Fault("wrong-byte")
    result = get(hub, repo, lock)
    assert result.refetched == ["config.json"]
    assert_whole(hub, repo, files)


def test_a_truncated_file_is_refused(hub, repo, lock, mirror):
    mirror.faults[BIG] = Fault("truncate", times=99, at=123_456)
    with pytest.raises(CheckFailed, match=r"sends 123456 of 300000 B and then ends; removed"):
        get(hub, repo, lock)
    assert not hub.snapshot(repo).exists()
    sha = hashlib.sha256(mirror.repos["acme/tiny"].files[BIG]).hexdigest()
    assert not list((hub.folder("acme/tiny") / "blobs").glob(sha + "*"))


def test_a_mirror_with_other_content_is_refused_before_any_weight_moves(hub, repo, lock, mirror):
    mirror.repos["acme/tiny"].files[BIG] = b"x" * 300_000
    with pytest.raises(CheckFailed, match=rf"disagree: {BIG}: sha256"):
        get(hub, repo, lock)
    assert mirror.sent[BIG] == 0


def test_a_hash_prefix_in_the_lock_is_checked(hub, repo, files, mirror):
    sha = hashlib.sha256(files[BIG]).hexdigest()
    for prefix, good in ((sha[:8], True), ("0" * 8, False)):
        lock = Lock(repo="acme/tiny", revision=REV, partial=True, source="t",
                    files=(LockedFile(path=BIG, sha256_prefix=prefix),))  # fmt: skip
        if good:
            assert get(hub, repo, lock).lock.by_path()[BIG].sha256 == sha
        else:
            with pytest.raises(CheckFailed, match=r"the lock says 00000000\.\.\."):
                get(hub, repo, lock)


def test_a_moved_repository_is_followed_and_said(hub, repo, lock, files, mirror):
    mirror.repos["new/home"] = MirrorRepo(dict(files))
    mirror.repos["acme/tiny"].moved_to = "new/home"
    notes = Silent()
    result = get(hub, repo, lock, notes)
    assert_whole(hub, repo, files)
    assert result.moved_to == "new/home"
    assert any("has moved to new/home" in n and "target.repo" in n for n in notes.notes)


def test_a_missing_revision_names_the_key(hub, lock):
    with pytest.raises(ConfigError, match=rf"draft\.revision {REV2} is not in acme/tiny"):
        get(hub, Repo("acme/tiny", REV2, "draft"), lock)


def test_a_missing_repository_names_the_key(hub, lock):
    with pytest.raises(ConfigError, match=r"target\.repo acme/none is not on"):
        get(hub, Repo("acme/none", REV), lock)


def test_a_branch_is_refused():
    with pytest.raises(ConfigError, match=r"target\.revision = 'main' is not a commit"):
        Repo("acme/tiny", "main")


def test_a_gated_repository_needs_a_token_and_works_with_one(hub, repo, lock, files, mirror):
    mirror.repos["acme/tiny"].token = "hf_secret"
    with pytest.raises(Unavailable, match=r"gated.*--token-file") as e:
        get(hub, repo, lock)
    assert "hf_secret" not in str(e.value)
    get(Hub(endpoint=hub.endpoint, cache=hub.cache, token="hf_secret", attempts=1), repo, lock)
    assert_whole(hub, repo, files)


def test_a_dead_endpoint_is_unavailable(tmp_path, repo, lock):
    with pytest.raises(Unavailable, match=r"does not answer.*HF_ENDPOINT"):
        get(Hub(endpoint="http://127.0.0.1:9", cache=tmp_path / "hub", attempts=2, wait=0), repo, lock)


def test_a_damaged_cached_blob_is_named_and_replaced(hub, repo, lock, files):
    get(hub, repo, lock)
    blob = (hub.snapshot(repo) / BIG).resolve()
    data = bytearray(blob.read_bytes())
    data[1000] ^= 0xFF
    blob.write_bytes(data)
    notes = Silent()
    result = get(hub, repo, lock, notes)
    assert result.refetched == [BIG]
    assert any(f"{BIG} in the cache is damaged" in n for n in notes.notes)
    assert_whole(hub, repo, files)


def test_verify_names_damage_and_gaps_without_network(hub, repo, lock, files):
    whole = get(hub, repo, lock).lock
    (hub.snapshot(repo) / "sub/notes.txt").unlink()
    blob = (hub.snapshot(repo) / SMALL).resolve()
    stat = blob.stat()
    data = bytearray(blob.read_bytes())
    data[0] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a fault that hides its time
    states = {r.path: r.state for r in verify_files(hub, repo, whole, rehash=True)}
    assert states == {"config.json": "ok", BIG: "ok", SMALL: "wrong", "sub/notes.txt": "missing"}
    assert not ready(hub, repo, whole)


def test_offline_and_incomplete_says_what_to_do(hub, repo, lock, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable, match=r"not complete.*HF_HUB_OFFLINE"):
        get(hub, repo, lock)


def test_hub_listing_and_info(hub, repo, files):
    listed = {f.path: f for f in list_files(hub, repo)}
    assert set(listed) == set(files)
    assert listed[BIG].sha256 == hashlib.sha256(files[BIG]).hexdigest()
    assert listed["config.json"].sha256 is None
    assert repo_info(hub, repo).license == "apache-2.0"


def test_a_mirror_that_answers_another_commit_is_refused(hub, repo, lock, mirror):
    mirror.repos["acme/tiny"].says_commit = REV2
    with pytest.raises(ConfigError, match=rf"answered commit {REV2}.*not a faithful mirror"):
        get(hub, repo, lock)


def test_verify_checks_a_prefix_where_no_more_is_known(hub, repo, lock, files):
    get(hub, repo, lock)
    sha = hashlib.sha256(files[BIG]).hexdigest()
    for prefix, state in ((sha[:8], "ok"), ("0" * 8, "wrong")):
        known = Lock(repo="acme/tiny", revision=REV, partial=True, source="t",
                     files=(LockedFile(path=BIG, sha256_prefix=prefix),))  # fmt: skip
        states = {r.path: r.state for r in verify_files(hub, repo, known)}
        assert states == {
            BIG: state,
            SMALL: "unlocked",
            "config.json": "unlocked",
            "sub/notes.txt": "unlocked",
        }


def test_a_file_only_xet_serves_is_named_with_the_way_round(hub, repo, lock, files, mirror, monkeypatch):
    import huggingface_hub.constants as c

    monkeypatch.setattr(c, "MAX_HTTP_DOWNLOAD_SIZE", 200_000)
    with pytest.raises(Unavailable, match=rf"xet only: hf download acme/tiny {BIG} --revision {REV}"):
        get(hub, repo, lock)
    # What another tool then put there is verified and taken.
    folder = hub.folder("acme/tiny")
    sha = hashlib.sha256(files[BIG]).hexdigest()
    (folder / "blobs" / sha).write_bytes(files[BIG])
    get(hub, repo, lock)
    assert_whole(hub, repo, files)
