"""series.toml: what is refused and how it is said; the real file is sound."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from patches import diff, series
from patches.errors import ConfigError
from tests.patches.conftest import Mini


def test_the_miniature_loads(mini: Mini) -> None:
    known = mini.series
    assert [p.id for p in known.carried] == ["P01", "P02", "P03"]
    assert known.spark_version == "0.5.23+spark.4"
    upstream = known.by_id("a01")
    assert (upstream.state, upstream.since) == ("upstream", "0.5.17")
    assert known.by_id("P01").why == "Because of alpha."


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[base]", "[base", "not valid TOML"),
        ("[series]", "[sries]", "unknown key 'sries'"),
        ("release = 4", 'release = "4"', "release: needs a whole number"),
        ("release = 4", "release = 0", "release: needs a whole number"),
        ("release = 4", "release = true", "release: needs a whole number"),
        ('version = "0.5.23"', 'version = "main"', "'main' is not a release number"),
        ('id = "P02"', 'id = "P01"', "id 'P01' is used twice"),
        ('id = "P02"', 'id = "second"', "id: 'second' is not like P06"),
        ('title = "Two files"', "", "P02: title: needs a text"),
        ('title = "Two files"', 'titel = "Two files"', "P02: unknown key 'titel'"),
        ('state = "carried"', 'state = "maybe"', "state: 'maybe' is none of"),
        ('state = "carried"', 'state = "upstream"', "since: state upstream needs"),
        ('state = "carried"', 'state = "dropped"', "'dropped' has no patch file"),
        ('upstream = ["sglang#30119", "acme note"]', "upstream = [1]", "P01: upstream: needs a list"),
        ('contract = "contracts/test_p01_alpha.py"', "", "P01: a carried patch needs a contract"),
        ('"contracts/test_p01_alpha.py"', '"../x.py"', "P01: contract: '../x.py' is not"),
        ('patch = "0002-p02.patch"', 'patch = "0009-p02.patch"', "not in the order of their numbers"),
        ('patch = "0002-p02.patch"', 'patch = "/tmp/x.patch"', "'/tmp/x.patch' is not like 0001-name.patch"),
        ('patch = "0001-p01.patch"', "", "P01: a carried patch needs a patch file"),
        ("before = ", "bfore = ", "needs before and after"),
        ('before = "absent"', 'before = "abc"', "not a sha256"),
        ("[patch.files]\n", "[patch.fils]\n", "unknown key 'fils'"),
    ],
)
def test_a_bad_series_is_refused_in_one_line(mini: Mini, old: str, new: str, complaint: str) -> None:
    mini.toml(old, new)
    with pytest.raises(ConfigError, match=re.escape(complaint)) as e:
        series.load(mini.root)
    assert "series.toml" in str(e.value)
    assert "\n" not in str(e.value)


def test_missing_series_and_unknown_patch(mini: Mini) -> None:
    with pytest.raises(ConfigError, match=r"no patch P77 .*known: P01, P02, P03, A01"):
        mini.series.by_id("P77")
    (mini.root / "0002-p02.patch").unlink()
    with pytest.raises(ConfigError, match=r"P02: cannot read 0002-p02\.patch: No such file"):
        mini.series.read(mini.series.by_id("P02"))
    (mini.root / "series.toml").unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        series.load(mini.root)


def test_the_real_series_is_sound() -> None:
    """Every patch file parses, touches what series.toml says, is listed, and has its contract."""
    known = series.load()
    for p in known.carried:
        files = diff.parse(known.read(p), str(p.patch))
        assert {f.path for f in files} == set(p.files)
        assert all(f.path.startswith("sglang/") and f.path.endswith(".py") for f in files)
    assert {str(p.patch) for p in known.carried} == {f.name for f in known.root.glob("*.patch")}
    contracts = {p.contract for p in known.patches if p.contract}
    assert all((known.root / c).is_file() for c in contracts)
    for cp in ("cp311", "cp312", "cp313"):
        for machine in ("x86_64", "aarch64"):
            assert any(f"-{cp}-" in n and n.endswith(f"{machine}.whl") for n in known.wheels)


def test_hash_chains_of_the_real_series_join() -> None:
    """What one patch leaves in a file is what the next one of that file expects."""
    last: dict[str, str] = {}
    for p in series.load().carried:
        for path, hashes in p.files.items():
            assert last.get(path, hashes.before) == hashes.before, f"{p.id}: {path}"
            assert hashes.before != hashes.after
            last[path] = hashes.after


def test_every_contract_file_is_run() -> None:
    """A contract file belongs to an entry, or is imported by a file that does."""
    known = series.load()
    claimed = {(known.root / str(p.contract)) for p in known.patches if p.contract}
    texts = "\n".join(f.read_text(encoding="utf-8") for f in claimed)
    for file in (known.root / "contracts").glob("test_*.py"):
        assert file in claimed or f"contracts.{file.stem} import" in texts, f"nothing runs {file.name}"


def test_the_tool_needs_only_the_standard_library() -> None:
    """It runs inside a container build, before anything is installed (-S: no site-packages)."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "patches", "status"],
        cwd=series.HERE.parent,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert series.load().spark_version in done.stdout
