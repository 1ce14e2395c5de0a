"""A flipped byte in a built fixture: `verify` and `serve` see it, and say what mends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch import cli
from launch.commandline import check_places, choose
from launch.errors import CheckFailed
from launch.render import Places
from smoke.fixtures import store

PRESET, TARGET, DRAFT = "tiny-w4a4-dflash2", "qwen38-w4a4", "dflash2"
WEIGHTS = bytes(range(256)) * 40


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two fixtures as the builder leaves them, listed by the builder's own code."""
    entries = {}
    for name in (TARGET, DRAFT):
        folder = tmp_path / "fixtures" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(WEIGHTS)
        entries[name] = {"files": store.listing(folder)}
    store.write_index(tmp_path / "fixtures", entries, {})
    monkeypatch.setenv("SPARKSERVE_FIXTURES", str(tmp_path / "fixtures"))
    return tmp_path / "fixtures"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)


def verify(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str], str]:
    """Exit code, {role/path: state}, stderr."""
    with pytest.raises(SystemExit) as e:
        cli.main(["verify", PRESET, "--json"])
    out = capsys.readouterr()
    data = json.loads(out.out)
    assert data["ok"] is (e.value.code == 0)
    states = {f"{c['role']}/{f['path']}": f["state"] for c in data["checkpoints"] for f in c["files"]}
    return int(e.value.code or 0), states, out.err


def serve_check(root: Path) -> None:
    resolved, _ = choose(PRESET, "h200")
    check_places(resolved, Places("python", root, root))


def test_whole_fixtures_pass(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, states, _ = verify(capsys)
    assert (code, set(states.values()), len(states)) == (0, {"ok"}, 4)
    serve_check(root)


@pytest.mark.parametrize(("role", "name"), [("target", TARGET), ("draft", DRAFT)])
def test_a_flipped_byte_is_found(
    root: Path, capsys: pytest.CaptureFixture[str], role: str, name: str
) -> None:
    flip(root / name / "model.safetensors")
    code, states, _ = verify(capsys)
    assert code == 1
    assert [k for k, v in states.items() if v != "ok"] == [f"{role}/model.safetensors"]
    with pytest.raises(
        CheckFailed, match=rf"{role} .*{name}: model.safetensors is wrong: sha256 .*fixtures build"
    ):
        serve_check(root)


def test_missing_extra_and_unlisted_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / TARGET / "model.safetensors").unlink()
    (root / DRAFT / "left.over").write_text("x")
    code, states, _ = verify(capsys)
    assert code == 1
    assert states["target/model.safetensors"] == "missing"
    assert states["draft/left.over"] == "unlocked"
    with pytest.raises(CheckFailed, match=r"model\.safetensors is missing"):
        serve_check(root)


def test_fixtures_without_an_index_are_not_called_whole(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The builder lists a folder last: without that it may be half-built. Serving one put together by hand goes."""
    (root / store.INDEX).unlink()
    code, states, _ = verify(capsys)
    assert (code, set(states.values())) == (1, {"unlocked"})
    serve_check(root)
    with pytest.raises(SystemExit):
        cli.main(["verify", PRESET])
    assert "not whole: run `sparkserve fixtures build`\n" in capsys.readouterr().err
