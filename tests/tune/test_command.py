"""`sparkserve tune` as a whole on a pretended GB10: the worker is fake_worker.py, everything else is real."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launch import machine
from launch.cli import app
from launch.errors import EngineFailed
from launch.tune import profile

FAKE = Path(__file__).with_name("fake_worker.py")
pytestmark = pytest.mark.suite
PRESET = "qwen3.8-27b-nvfp4-dflash2"


@pytest.fixture
def gb10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environment of a GB10 with nothing pulled; `how` of the fake worker is in a file."""
    for name in ("SPARKSERVE_CACHE", "SPARKSERVE_STATE", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -m) exec {sys.executable} {FAKE} "$(cat {tmp_path}/how)" {tmp_path}/starts;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("SPARKSERVE_ENGINE_PYTHON", str(python))
    gpu = machine.Gpu("NVIDIA GB10", "12.1", None, "580.95")
    monkeypatch.setattr(machine, "_gpus", lambda: ((gpu,), "pretended"))
    (tmp_path / "how").write_text("well")
    return tmp_path


def tune(*args: str) -> Result:
    return CliRunner().invoke(app, ["tune", PRESET, "--machine", "gb10-128", *args])


def test_it_prints_a_table_and_writes_the_profile_serve_reads(gb10: Path) -> None:
    done = tune()
    assert done.exit_code == 0, done.output
    assert "copy bandwidth, measured" in done.stdout
    assert "fp4/flashinfer_cutlass nvfp4 34816x5120 m8" in done.stdout
    assert "fp4: fp4/flashinfer_cutlass (no other is faster than noise)" in done.stdout
    (file,) = profile.folder().glob("*.json")
    found = profile.load(file)
    assert found is not None
    assert found.key.gpu == "NVIDIA GB10"
    assert found.presets[PRESET].finished
    printed = CliRunner().invoke(app, ["serve", PRESET, "--machine", "gb10-128", "--print"])
    assert f"machine profile {file.name}: today's choices stay" in printed.stderr
    hidden = CliRunner().invoke(app, ["serve", PRESET, "--machine", "gb10-128", "--print", "--no-profile"])
    assert "machine profile" not in hidden.stderr
    assert hidden.stdout == printed.stdout


def test_json_has_every_measurement_and_the_choices(gb10: Path) -> None:
    (gb10 / "how").write_text("raises")
    done = tune("--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    bad = [r for r in data["rows"] if r["candidate"].startswith("fp4/flashinfer_b12x")]
    assert bad
    assert all("multiple of 32" in r["error"] and r["us"] is None for r in bad)
    assert {c["role"] for c in data["choices"]} == {"fp4", "fp8", "bf16"}


def test_a_second_run_measures_nothing_and_again_starts_over(gb10: Path) -> None:
    assert tune().exit_code == 0
    starts = len((gb10 / "starts").read_text())
    assert tune().exit_code == 0
    assert len((gb10 / "starts").read_text()) == starts
    assert tune("--again").exit_code == 0
    assert len((gb10 / "starts").read_text()) == 2 * starts


def test_when_nothing_can_be_measured_it_ends_with_an_error(gb10: Path) -> None:
    (gb10 / "how").write_text("no-gpu")
    done = tune()
    assert isinstance(done.exception, EngineFailed)
    assert "PyTorch finds no GPU" in str(done.exception)
    assert not list(profile.folder().glob("*.json"))
