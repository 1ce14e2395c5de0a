"""The released wheel: taken when its bytes are the pinned ones, fetched again when not, refused when the index lies."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from patches import basewheel, cli
from patches.errors import Unavailable
from patches.series import Series, load
from tests.patches.conftest import Mini

GOOD = hashlib.sha256(b"good").hexdigest()


@pytest.fixture
def pinned(mini: Mini) -> Series:
    """The miniature series, pinning one wheel of this interpreter with the bytes "good"."""
    tag, machine = basewheel._tags()
    name = f"sglang-{mini.series.version}-{tag}-{tag}-manylinux_2_34_{machine}.whl"
    return replace(mini.series, wheels={name: GOOD})


def index(monkeypatch: pytest.MonkeyPatch, known: Series, content: bytes) -> list[str]:
    """A package index that serves `content`; what it was asked for."""
    asked: list[str] = []

    def download(version: str, into: Path) -> Path:
        asked.append(version)
        path = into / next(iter(known.wheels))
        path.write_bytes(content)
        return path

    monkeypatch.setattr(basewheel, "_download", download)
    return asked


def test_damaged_wheel_is_named_and_fetched_again(
    pinned: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = index(monkeypatch, pinned, b"good")
    (tmp_path / next(iter(pinned.wheels))).write_bytes(b"evil")
    assert basewheel.base_wheel(pinned, tmp_path).read_bytes() == b"good"
    err = capsys.readouterr().err
    assert f"sha256 {hashlib.sha256(b'evil').hexdigest()}, pinned is {GOOD}: fetching it again" in err
    assert basewheel.base_wheel(pinned, tmp_path).read_bytes() == b"good"
    assert asked == ["0.5.23"], "a wheel with the pinned hash is not fetched again"


def test_an_index_that_serves_other_bytes_is_refused(
    pinned: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(monkeypatch, pinned, b"evil")
    with pytest.raises(Unavailable, match=rf"whl: the index served sha256 .*, pinned is {GOOD}"):
        basewheel.base_wheel(pinned, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_the_command_prints_where_it_lies(
    pinned: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index(monkeypatch, pinned, b"good")
    monkeypatch.setattr(cli.series, "load", lambda _root: pinned)
    assert cli.main(["base", "-o", str(tmp_path)]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == b"good"
    index(monkeypatch, pinned, b"evil")
    assert cli.main(["base", "-o", str(tmp_path / "other")]) == 69
    assert capsys.readouterr().err.count("\n") == 2, "what is fetched, and one line of error"


def test_the_series_pins_a_wheel_for_each_development_interpreter() -> None:
    names = load().wheels
    for tag in ("cp311", "cp312"):
        assert any(f"-{tag}-" in n and n.endswith("x86_64.whl") for n in names)
