"""The machine profile: what makes it apply, what makes it stale, and what `serve` makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch import commandline, machine
from launch.errors import ConfigError
from launch.registry import Registry
from launch.tune import profile

NAME = "qwen3.8-27b-nvfp4-dflash2"
KEY = profile.Key(
    gpu="NVIDIA GB10",
    capability="12.1",
    driver="580.95",
    packages={"sglang": "0.5.23+spark.1", "torch": "2.14"},
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A saved profile for NAME on this machine, which pretends to be a GB10."""
    monkeypatch.setenv("SPARKSERVE_CACHE", str(tmp_path))
    gpu = machine.Gpu("NVIDIA GB10", "12.1", None, "580.95")
    monkeypatch.setattr(machine, "_gpus", lambda: ((gpu,), "pretended"))
    monkeypatch.setattr(profile, "packages", lambda _python: dict(KEY.packages))
    found = Registry().load(NAME).digest
    tuned = profile.Tuned(
        digest=found, finished=True, engine={"fp4_gemm_backend": "flashinfer_cudnn"},
        env={"SGLANG_KDA_ON_SM121": "1"},
    )  # fmt: skip
    profile.save(profile.Profile(schema=1, key=KEY, copy_bytes=1, bandwidth=231e9, presets={NAME: tuned}))
    return found


def test_serve_uses_it_and_says_which(digest: str) -> None:
    launch = commandline.command_for(NAME, "gb10-128")
    words = launch.command.argv
    assert words[words.index("--fp4-gemm-backend") + 1] == "flashinfer_cudnn"
    assert launch.command.env["SGLANG_KDA_ON_SM121"] == "1"
    assert any(KEY.name() in note and "flashinfer_cudnn" in note for note in launch.notes)


def test_it_can_be_left_out_and_what_is_set_by_hand_wins(digest: str) -> None:
    plain = commandline.command_for(NAME, "gb10-128", profile=False)
    assert "--fp4-gemm-backend" not in plain.command.argv
    by_hand = commandline.command_for(NAME, "gb10-128", settings=["fp4_gemm_backend=marlin"])
    words = by_hand.command.argv
    assert words[words.index("--fp4-gemm-backend") + 1] == "marlin"


def test_another_class_by_hand_is_not_tuned(digest: str) -> None:
    assert "--fp4-gemm-backend" not in commandline.command_for(NAME, "rtx-pro-6000").command.argv


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"driver": "590.10"}, "driver 580.95 -> 590.10"),
        (
            {"packages": {"sglang": "0.5.23+spark.2", "torch": "2.14"}},
            "sglang 0.5.23+spark.1 -> 0.5.23+spark.2",
        ),
        ({"image": "abc"}, "another image"),
    ],
)
def test_a_stale_one_is_named_and_not_used(digest: str, change: dict, said: str) -> None:
    used = profile.use(NAME, digest, KEY.model_copy(update=change))
    assert (dict(used.engine), dict(used.env)) == ({}, {})
    assert "stale" in used.note
    assert said in used.note


def test_a_changed_preset_is_not_served_with_old_choices(digest: str) -> None:
    used = profile.use(NAME, "0" * 64, KEY)
    assert not used.engine
    assert "the preset has changed" in used.note


def test_a_file_under_the_wrong_name_is_not_used(digest: str) -> None:
    other = KEY.model_copy(update={"driver": "1.0"})
    profile.path_of(KEY).rename(profile.path_of(other))
    used = profile.use(NAME, digest, other)
    assert not used.engine
    assert "driver 580.95 -> 1.0" in used.note


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "key": {}, "copy_bytes": 1}']
)
def test_a_damaged_one_is_told_by_serve_and_refused_by_tune(digest: str, text: str) -> None:
    path = profile.path_of(KEY)
    path.write_text(text)
    used = profile.use(NAME, digest, KEY)
    assert not used.engine
    assert "delete it and tune again" in used.note
    with pytest.raises(ConfigError, match="not a machine profile"):
        profile.load(path)


def test_it_survives_a_round_trip(digest: str) -> None:
    found = profile.load(profile.path_of(KEY))
    assert found is not None
    assert found.key == KEY
    assert json.loads(profile.path_of(KEY).read_text())["schema"] == 1


def test_without_a_gpu_tune_is_one_line_and_78(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "launch", "tune", "tiny-w4a4-dflash2"]
    env = {
        "PATH": "/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": "",
        "SPARKSERVE_CACHE": str(tmp_path),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "needs an NVIDIA GPU" in done.stderr
    assert not list(tmp_path.iterdir())
