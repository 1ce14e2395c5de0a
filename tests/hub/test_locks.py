"""The locks in the repository: well formed, nothing invented, and the schema is the model's."""

from __future__ import annotations

import json

import jsonschema
import pytest
from pydantic import ValidationError

from launch.errors import ConfigError
from launch.locks import (
    LOCK_DIR,
    SCHEMA_FILE,
    Lock,
    LockedFile,
    diff,
    dump_lock,
    find_lock,
    json_schema,
    lock_name,
    merge,
    read_lock,
)

REV = "52d1adc5f38aa5ebf099c29ed7025ba34cfbb854"
LOCKS = sorted(LOCK_DIR.glob("*@*.json"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.stem)
def test_each_lock_is_valid_and_named_after_what_it_locks(path):
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA_FILE.read_text()))
    lock = read_lock(path)
    assert path.name == lock_name(lock.repo, lock.revision)
    assert dump_lock(lock) == path.read_text()
    assert lock.partial or all(f.complete for f in lock.files)


def test_the_checked_in_schema_is_the_models():
    assert json.loads(SCHEMA_FILE.read_text()) == json_schema()


def test_the_main_target_is_locked_as_published():
    lock = find_lock("RadixArk/Qwen3.8-27B-NVFP4", REV)
    assert lock is not None
    shards = [f for f in lock.files if f.path.endswith(".safetensors")]
    assert sum(f.size or 0 for f in shards) == 21_921_697_280
    assert (lock.file_count, lock.total_bytes) == (22, 21_945_295_073)
    assert lock.by_path()["tokenizer.json"].sha256 is None  # only its first digits are published
    assert lock.by_path()["tokenizer.json"].sha256_prefix == "0997f410"


def test_the_two_names_of_the_bf16_draft_carry_one_weight_hash():
    a = find_lock("z-lab/Qwen3.8-27B-DFlash2", "50307d4c4cde6860d4eee73e2547cd786fe8e8a4")
    b = find_lock("incoai/Qwen3.8-27B-DFlash2", "dedf8df68adfb1afeaf7b7480c0a0243108177b4")
    assert a is not None
    assert b is not None
    assert a.by_path()["model.safetensors"] == b.by_path()["model.safetensors"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a\\b"])
def test_a_path_that_leaves_the_repository_is_refused(path):
    with pytest.raises(ValidationError, match="not a path inside"):
        LockedFile(path=path)


def test_a_damaged_lock_is_named(tmp_path):
    path = tmp_path / lock_name("a/b", REV)
    path.write_text('{"schema": 1, "repo": "a/b", "revision": "main", "partial": true, "source": ""}')
    with pytest.raises(ConfigError, match=r"a-b@52d1adc5\.json: revision"):
        read_lock(path)


def locked(*files: LockedFile, partial: bool = True) -> Lock:
    return Lock(repo="a/b", revision=REV, partial=partial, source="s", files=files)


def test_merge_learns_and_contradicts():
    known = locked(
        LockedFile(path="w", size=5, sha256="a" * 64), LockedFile(path="t", sha256_prefix="abcdef")
    )
    found = [LockedFile(path="w", size=5, sha256="a" * 64), LockedFile(path="t", size=3, sha256="abcdef" + "0" * 58),
             LockedFile(path="n", size=1, blob_id="1" * 40)]  # fmt: skip
    lock, learnt, wrong = merge(known, found, source="hub")
    assert wrong == []
    assert lock.partial  # n has no sha256 yet
    assert lock.by_path()["t"].sha256_prefix is None
    assert any(x.startswith("n: size 1") for x in learnt)
    _, _, wrong = merge(known, [LockedFile(path="w", size=6, sha256="b" * 64)], source="hub")
    assert [w.split(":")[0] for w in wrong] == ["w", "w", "t"]


def test_a_complete_lock_admits_no_further_file():
    known = locked(LockedFile(path="w", size=5, sha256="a" * 64), partial=False)
    _, _, wrong = merge(
        known, [known.files[0], LockedFile(path="evil.py", size=1, blob_id="1" * 40)], source=""
    )
    assert wrong == ["evil.py: not in the lock"]


def test_diff_says_what_a_new_revision_changes():
    old = locked(
        LockedFile(path="w", size=5, sha256="a" * 64), LockedFile(path="gone", size=1, sha256="c" * 64)
    )
    new = locked(LockedFile(path="w", size=6, sha256="b" * 64), LockedFile(path="n", size=1, sha256="d" * 64))
    assert [line[:2] for line in diff(old, new)] == ["- ", "+ ", "~ "]
    assert diff(old, old) == []
