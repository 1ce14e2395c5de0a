"""Are the files of a built fixture those the builder wrote down? Reads `fixtures.json` (smoke/fixtures/store.py)."""

from __future__ import annotations

import json
from pathlib import Path

from launch.errors import CheckFailed
from launch.preset import Checkpoint
from launch.verify import FileReport, file_sha256

INDEX = "fixtures.json"


def verify_fixture(root: Path, name: str) -> list[FileReport]:
    """Every file of fixture `name` under `root`, hashed (a few MB): `ok`, `missing`, `wrong`, or `unlocked`.

    A fixture the index does not list was not finished by the builder: all its files are `unlocked`.
    """
    folder = root / name
    try:
        listed = json.loads((root / INDEX).read_text("utf-8"))["fixtures"][name]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        listed = {}
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    reports = []
    for path in sorted(present | set(listed)):
        want = listed.get(path)
        if path not in present:
            reports.append(FileReport(path, "missing", "not in the folder"))
            continue
        size, sha = (folder / path).stat().st_size, file_sha256(folder / path)
        if want is None:
            reports.append(FileReport(path, "unlocked", f"not in {INDEX}", sha, size))
        elif size != want["size"]:
            reports.append(FileReport(path, "wrong", f"size {size} B, expected {want['size']} B", sha, size))
        elif sha != want["sha256"]:
            reports.append(FileReport(path, "wrong", f"sha256 {sha}, expected {want['sha256']}", sha, size))
        else:
            reports.append(FileReport(path, "ok", "", sha, size))
    return reports


def ensure_fixture(root: Path, role: str, checkpoint: Checkpoint) -> None:
    """Raise CheckFailed when a file of the fixture is gone or changed; one that is not listed is let pass.

    A folder without an index is one somebody put together by hand, to serve just that: `verify` calls it not whole.
    """
    assert checkpoint.fixture is not None
    bad = [r for r in verify_fixture(root, checkpoint.fixture) if r.state in ("missing", "wrong")]
    if bad:
        raise CheckFailed(
            f"{role} {root / checkpoint.fixture}: {bad[0].path} is {bad[0].state}: {bad[0].detail}; "
            f"run `sparkserve fixtures build {root}`"
        )
