"""verify: per patch applied, missing, upstream or drifted, told apart by hashes even in a shared file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patches import apply, cli, verify, wheelfile
from patches.errors import ConfigError
from patches.wheelfile import Member
from tests.patches.conftest import Mini


@pytest.fixture
def site(mini: Mini, tmp_path: Path) -> Path:
    """A site-packages with the whole series in it."""
    target = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    wheelfile.write_tree(apply.build(mini.series, mini.wheel)[1].members, target)
    return target


def report(mini: Mini, target: Path) -> verify.Report:
    return verify.verify(mini.series, verify.open_target(str(target)))


def states(mini: Mini, target: Path) -> str:
    return " ".join(p.state for p in report(mini, target).patches)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_patched_wheel_and_its_install_are_whole(mini: Mini, site: Path) -> None:
    wheel, _ = apply.build_wheel(mini.series, mini.wheel, mini.out)
    python = site.parents[2] / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    for target in (wheel, site, site.parents[2], python):
        got = report(mini, target)
        assert got.whole, got
        assert [p.state for p in got.patches] == ["applied", "applied", "applied", "upstream"]
        assert got.version == "0.5.23+spark.4"


def test_the_released_wheel_has_none(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    assert states(mini, mini.wheel) == "missing missing missing upstream"
    assert cli.main(["--root", str(mini.root), "verify", str(mini.wheel)]) == 1
    out = capsys.readouterr().out
    assert "0.5.23 (expected 0.5.23+spark.4)" in out
    assert "NOT whole" in out


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("P01", "applied missing missing upstream"),  # a hash of the chain
        ("P02", "missing applied missing upstream"),  # a clean subset, off the chain
        ("P02 P03", "missing applied applied upstream"),
        ("P01 P03", "applied missing applied upstream"),
    ],
)
def test_a_part_of_the_series(mini: Mini, only: str, expected: str) -> None:
    known = mini.series
    chosen = [known.by_id(i) for i in only.split()]
    wheel, _ = apply.build_wheel(known, mini.wheel, mini.out, chosen)
    assert states(mini, wheel) == expected
    assert not report(mini, wheel).whole


def test_a_foreign_edit_makes_every_patch_of_that_file_drifted(mini: Mini, site: Path) -> None:
    edit(site / "sglang" / "alpha.py", "alpha = 30", "alpha = 31")
    got = report(mini, site)
    assert [p.state for p in got.patches] == ["drifted", "drifted", "applied", "upstream"]
    assert "its change is in, but the file has other changes too" in got.patches[0].note
    assert got.patches[1].files == {"sglang/alpha.py": "drifted", "sglang/beta.py": "applied"}
    assert got.bad_records == ("sglang/alpha.py",)
    assert not got.whole


def test_a_change_undone_by_hand_is_missing(mini: Mini, site: Path) -> None:
    edit(site / "sglang" / "alpha.py", 'alpha = "P01"\n', "")
    assert states(mini, site) == "missing applied applied upstream"


def test_a_change_overwritten_is_drifted_and_says_so(mini: Mini, site: Path) -> None:
    edit(site / "sglang" / "alpha.py", 'alpha = "P01"', 'alpha = "else"')
    got = report(mini, site)
    assert got.patches[0].state == "drifted"
    assert "its change is neither in nor fits (hunk 1" in got.patches[0].note


def test_half_a_patch_is_drifted(mini: Mini, site: Path) -> None:
    edit(site / "sglang" / "beta.py", 'return "P02"', "return 1")
    got = report(mini, site)
    assert got.patches[1].state == "drifted"
    assert got.patches[1].files == {"sglang/alpha.py": "applied", "sglang/beta.py": "missing"}
    assert "only in some of its files" in got.patches[1].note


def test_a_missing_file_and_a_surplus_edit_elsewhere(mini: Mini, site: Path) -> None:
    (site / "sglang" / "new" / "delta.py").unlink()
    assert states(mini, site) == "applied applied missing upstream"
    edit(site / "sglang" / "__init__.py", "import", "import ")
    got = report(mini, site)
    assert got.bad_records == ("sglang/__init__.py", "sglang/new/delta.py")


def test_right_files_under_a_wrong_version_are_not_whole(mini: Mini, site: Path) -> None:
    info = next(site.glob("*.dist-info"))
    edit(info / "METADATA", "Version: 0.5.23+spark.4", "Version: 0.5.23+spark.3")
    got = report(mini, site)
    assert {p.state for p in got.patches} == {"applied", "upstream"}
    assert not got.whole


def test_byte_code_and_installer_files_do_not_matter(mini: Mini, site: Path) -> None:
    info = next(site.glob("*.dist-info"))
    record = (info / "RECORD").read_text()
    record += "sglang/__pycache__/alpha.cpython-312.pyc,,\nbin/x,sha256=abc,1\n"
    (info / "RECORD").write_text(record + f"{info.name}/INSTALLER,sha256=abc,4\n")
    assert report(mini, site).whole


def test_what_cannot_be_verified_says_why(mini: Mini, site: Path, tmp_path: Path) -> None:
    for target, complaint in (
        (tmp_path / "none", "no such wheel, directory or python"),
        (mini.root, "no sglang found in it"),
        (tmp_path / "none.whl", "no such wheel"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            verify.open_target(str(target))
    shutil.copytree(next(site.glob("*.dist-info")), site / "sglang-0.5.22.dist-info")
    with pytest.raises(ConfigError, match=r"2 sglang-\*\.dist-info directories"):
        verify.open_target(str(site))
    shutil.rmtree(site / "sglang-0.5.22.dist-info")
    (next(site.glob("*.dist-info")) / "RECORD").unlink()
    with pytest.raises(ConfigError, match="no RECORD"):
        verify.open_target(str(site))


def test_json_carries_the_whole_answer(mini: Mini, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--root", str(mini.root), "verify", str(site), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["whole"] is True
    assert [p["state"] for p in data["patches"]] == ["applied", "applied", "applied", "upstream"]


def test_a_corrupted_member_of_a_wheel_is_found_by_record(mini: Mini) -> None:
    wheel, _ = apply.build_wheel(mini.series, mini.wheel, mini.out)
    members = wheelfile.read(wheel)
    members["sglang/__init__.py"] = Member(b"import os\n")
    wheelfile.write(members, wheel)
    assert report(mini, wheel).bad_records == ("sglang/__init__.py",)
