"""apply: a deterministic, installable wheel; and nothing left behind when anything is wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from patches import apply, cli, wheelfile
from patches.errors import CannotWrite, ConfigError, DoesNotApply
from tests.patches.conftest import ALPHA, Mini, members_of

NAME = "sglang-0.5.23+spark.4-py3-none-any.whl"


def run(mini: Mini, *args: str | Path) -> int:
    return cli.main(["--root", str(mini.root), *map(str, args)])


def left(mini: Mini) -> list[str]:
    return sorted(p.name for p in mini.out.iterdir()) if mini.out.exists() else []


def test_the_wheel_holds_the_patched_files_and_says_its_version(
    mini: Mini, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(mini, "apply", mini.wheel, "-o", mini.out) == 0
    assert capsys.readouterr().out.strip() == str(mini.out / NAME)
    assert left(mini) == [NAME]
    got = wheelfile.read(mini.out / NAME)
    info = "sglang-0.5.23+spark.4.dist-info"
    want = ALPHA.replace("alpha = 5\n", 'alpha = "P01"\nalpha = 5\n').replace(
        "alpha = 20\n", 'alpha = "P02"\n'
    )
    assert got["sglang/alpha.py"].data.decode() == want
    assert got["sglang/new/delta.py"].data == b"DELTA = 3\n# the end\n"
    assert got["sglang/beta.py"].mode == 0o100755
    assert b"Version: 0.5.23+spark.4\n\nVersion: 0.5.23\n" in got[f"{info}/METADATA"].data
    assert b"version = '0.5.23+spark.4'\n" in got["sglang/_version.py"].data
    assert b"= (0, 5, 23, 'spark.4')\n" in got["sglang/_version.py"].data
    assert not [n for n in got if n.startswith("sglang-0.5.23.dist-info")]
    manifest = json.loads(got[f"{info}/SPARK_PATCHES.json"].data)
    assert [p["id"] for p in manifest["patches"]] == ["P01", "P02", "P03"]


def test_record_lists_every_member_with_its_hash_and_size(mini: Mini) -> None:
    target, _ = apply.build_wheel(mini.series, mini.wheel, mini.out)
    got = wheelfile.read(target)
    record = got["sglang-0.5.23+spark.4.dist-info/RECORD"].data.decode()
    rows = {r[0]: r[1:] for r in csv.reader(io.StringIO(record))}
    assert set(rows) == set(got)
    for path, (digest, size) in rows.items():
        if path.endswith("/RECORD"):
            assert (digest, size) == ("", "")
        else:
            assert (digest, size) == (wheelfile.record_hash(got[path].data), str(len(got[path].data)))


def test_two_runs_give_the_same_bytes_in_the_same_order(mini: Mini, tmp_path: Path) -> None:
    one, _ = apply.build_wheel(mini.series, mini.wheel, mini.out)
    os.utime(mini.root / "series.toml", (1, 1))
    two, _ = apply.build_wheel(mini.series, mini.wheel, tmp_path / "again")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as z:
        names = z.namelist()
        assert {i.date_time for i in z.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names[-1].endswith(".dist-info/RECORD")
    assert names[:-1] == sorted(names[:-1], key=lambda n: (".dist-info/" in n, n))


def test_the_tree_is_importable_and_tells_its_version(mini: Mini) -> None:
    assert run(mini, "apply", mini.wheel, "--tree", mini.out) == 0
    code = "import sglang, sglang.alpha, importlib.metadata as m\n"
    code += "print(sglang.__version__, sglang.alpha.alpha, m.version('sglang'))"
    env = {**os.environ, "PYTHONPATH": str(mini.out)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5.23+spark.4", "30", "0.5.23+spark.4"]
    with pytest.raises(CannotWrite, match="exists already"):
        wheelfile.write_tree({}, mini.out)


def test_only_some_patches_and_a_version_that_says_so(mini: Mini) -> None:
    assert run(mini, "apply", mini.wheel, "-o", mini.out, "--only", "p02,P03") == 0
    assert left(mini) == ["sglang-0.5.23+spark.4.only.p02.p03-py3-none-any.whl"]
    got = wheelfile.read(mini.out / left(mini)[0])["sglang/alpha.py"].data.decode()
    assert '"P02"' in got
    assert '"P01"' not in got
    assert run(mini, "apply", mini.wheel, "-o", mini.out, "--only", "P01", "P02", "P03") == 0
    assert NAME in left(mini)


# --- what goes wrong -----------------------------------------------------------------------------


def refused(mini: Mini, capsys: pytest.CaptureFixture[str], code: int = 78, wheel: Path | None = None) -> str:
    """The one line of a refused apply; the output directory holds what it held before."""
    before = left(mini)
    assert run(mini, "apply", wheel or mini.wheel, "-o", mini.out) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert left(mini) == before
    return captured.err.strip()


def test_a_corrupted_wheel_is_named_with_both_hashes(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    want = wheelfile.sha256_file(mini.wheel)
    data = bytearray(mini.wheel.read_bytes())
    data[200] ^= 1
    mini.wheel.write_bytes(data)
    got = wheelfile.sha256_file(mini.wheel)
    line = refused(mini, capsys)
    assert line == (
        f"patches: {mini.wheel.name}: sha256 mismatch: expected {want}, got {got}; fetch it again"
    )


def test_a_truncated_wheel_an_unpinned_one_and_none(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    other = mini.release("sglang-0.5.22-py3-none-any.whl")
    assert "not a pinned wheel of sglang 0.5.23" in refused(mini, capsys, wheel=other)
    assert "no such wheel" in refused(mini, capsys, wheel=mini.out / "no.whl")
    mini.wheel.write_bytes(mini.wheel.read_bytes()[:-100])
    assert "sha256 mismatch" in refused(mini, capsys)
    with pytest.raises(ConfigError, match="not a whole zip file"):
        wheelfile.read(mini.wheel)


def test_a_bad_crc_inside_the_zip_is_found(mini: Mini) -> None:
    with zipfile.ZipFile(mini.wheel) as z:
        info = z.getinfo("sglang/alpha.py")
    data = bytearray(mini.wheel.read_bytes())
    start = info.header_offset + 30 + len(info.filename)
    data[start + 10] ^= 0xFF
    mini.wheel.write_bytes(data)
    with pytest.raises(ConfigError, match="not a whole zip file"):
        wheelfile.read(mini.wheel)


def test_a_hunk_that_does_not_apply_names_patch_file_and_hunk(
    mini: Mini, capsys: pytest.CaptureFixture[str]
) -> None:
    path = mini.root / "0002-p02.patch"
    path.write_text(path.read_text().replace(" alpha = 21", " alpha = 2100"))
    line = refused(mini, capsys)
    assert line.startswith(
        "patches: P02 (0002-p02.patch): sglang/alpha.py hunk 1 (@@ -19,5 +19,5 @@): context"
    )
    assert "should be 'alpha = 2100', is 'alpha = 21'" in line


def test_a_failing_second_file_leaves_nothing_of_the_first(mini: Mini) -> None:
    path = mini.root / "0002-p02.patch"
    path.write_text(path.read_text().replace("-    return 1", "-    return 7"))
    members = wheelfile.read(mini.wheel)
    with pytest.raises(DoesNotApply, match=r"P02 .*sglang/beta\.py hunk 1"):
        apply.apply_series(mini.series, members)
    assert members["sglang/alpha.py"].data.decode() == ALPHA


def test_a_missing_file_is_named(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    members = members_of("0.5.23")
    del members["sglang/beta.py"]
    old = wheelfile.sha256_file(mini.wheel)
    wheelfile.write(wheelfile.write_record(members), mini.wheel)
    mini.toml(old, wheelfile.sha256_file(mini.wheel))
    assert refused(mini, capsys).endswith("P02 (0002-p02.patch): sglang/beta.py: no such file in the wheel")


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_wrong_hash_is_refused(mini: Mini, capsys: pytest.CaptureFixture[str], side: str) -> None:
    text = (mini.root / "series.toml").read_text()
    sha = re.findall(rf'"sglang/beta\.py" = .*{side} = "([0-9a-f]+)"', text)[0]
    mini.toml(sha, "0" * 64)
    line = refused(mini, capsys)
    assert f"P02: sglang/beta.py: sha256 {side} the patch is {sha}, series.toml says {'0' * 64}" in line


def test_a_patch_outside_the_engine_or_not_python_is_refused(
    mini: Mini, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("other/delta.py", "sglang/new/delta.cu"):
        text = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
        (mini.root / "0003-p03.patch").write_text(text)
        assert "Python files below sglang/ only" in refused(mini, capsys)


def test_series_and_patch_disagreeing_about_files(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    (mini.root / "0003-p03.patch").write_text("--- /dev/null\n+++ b/sglang/other.py\n@@ -0,0 +1 @@\n+x\n")
    assert "disagree about sglang/new/delta.py, sglang/other.py" in refused(mini, capsys)


def test_an_interrupted_write_leaves_the_old_wheel_and_no_part(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = apply.build_wheel(mini.series, mini.wheel, mini.out)
    good = target.read_bytes()
    written = zipfile.ZipFile.writestr
    calls = []

    def dies(self: zipfile.ZipFile, *a: object, **kw: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        written(self, *a, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(zipfile.ZipFile, "writestr", dies)
    with pytest.raises(KeyboardInterrupt):
        apply.build_wheel(mini.series, mini.wheel, mini.out)
    assert left(mini) == [NAME]
    assert target.read_bytes() == good


def test_a_full_disk_or_unwritable_place_is_said_with_code_73(
    mini: Mini, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mini.out.write_text("a file where the directory should be")
    assert run(mini, "apply", mini.wheel, "-o", mini.out) == 73
    assert "cannot be written" in capsys.readouterr().err
    mini.out.unlink()

    def full(*_a: object, **_k: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    assert run(mini, "apply", mini.wheel, "-o", mini.out) == 73
    assert "No space left on device" in capsys.readouterr().err
    assert left(mini) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_output_directory(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    mini.out.mkdir(mode=0o555)
    assert run(mini, "apply", mini.wheel, "-o", mini.out) == 73
    assert "Permission denied" in capsys.readouterr().err


def test_usage_errors(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(mini, "apply", mini.wheel) == 78
    assert "either -o DIR" in capsys.readouterr().err
    assert run(mini, "apply", mini.wheel, "-o", mini.out, "--only", "A01") == 78
    assert "A01: not carried" in capsys.readouterr().err
    with pytest.raises(SystemExit) as e:
        run(mini, "nonsense")
    assert e.value.code == 2
