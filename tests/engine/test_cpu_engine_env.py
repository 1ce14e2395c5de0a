"""The CPU engine's environment, flags and its refusal to run beside a GPU. No torch, no sglang."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from smoke.cpu_engine import env

SHADOW = str(env.SHADOW)


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    return subprocess.run(  # noqa: PLW1510 (its code is what is asserted)
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": SHADOW, **variables},
        capture_output=True,
        text=True,
    )


def test_environment_puts_the_shadow_first_once_and_unsets_what_slows_the_boot():
    base = {
        "PYTHONPATH": f"/a{os.pathsep}{SHADOW}{os.pathsep}/b",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/h",
    }
    got = env.engine_env(base)
    assert got["PYTHONPATH"].split(os.pathsep) == [SHADOW, "/a", "/b"]
    assert "PYTHONDONTWRITEBYTECODE" not in got
    assert got["HOME"] == "/h"
    assert got["SGLANG_USE_CPU_ENGINE"] == "1"
    assert got["OMP_NUM_THREADS"] == "1"
    assert env.engine_env({"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"
    assert base["PYTHONDONTWRITEBYTECODE"] == "1", "the caller's mapping is left alone"


@pytest.mark.parametrize(
    ("config", "hybrid"),
    [
        ({"layer_types": ["full_attention"]}, False),
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, True),
        ({}, False),
    ],
)
def test_flags_follow_the_layers_of_the_model(tmp_path, config, hybrid):
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = env.engine_args(tmp_path)
    assert args[:2] == ["--model-path", str(tmp_path)]
    assert ("--mamba-radix-cache-strategy" in args) is hybrid
    assert "--skip-server-warmup" not in args


@pytest.mark.parametrize("sign", ["dev/nvidiactl", "proc/driver/nvidia/version"])
def test_a_gpu_stops_the_process_with_one_line(tmp_path, sign):
    (tmp_path / sign).parent.mkdir(parents=True)
    (tmp_path / sign).touch()
    r = python(f"from sglang_cpu_ref import guard; guard.check({str(tmp_path)!r}); print('went on')")
    assert r.returncode == 78
    assert "went on" not in r.stdout
    assert len(r.stderr.strip().splitlines()) == 1
    assert str(tmp_path / sign) in r.stderr


def test_no_gpu_lets_it_pass(tmp_path):
    r = python(f"from sglang_cpu_ref import guard; guard.check({str(tmp_path)!r}); print('went on')")
    assert (r.returncode, r.stdout) == (0, "went on\n")


def test_a_visible_cuda_device_stops_it_too(tmp_path):
    code = (
        "import sys; from types import SimpleNamespace as N;"
        "sys.modules['torch'] = N(cuda=N(is_available=lambda: True));"
        f"from sglang_cpu_ref import guard; guard.check({str(tmp_path)!r})"
    )
    r = python(code)
    assert r.returncode == 78
    assert "torch.cuda.is_available()" in r.stderr


def test_the_shadow_kernel_package_cannot_be_used_by_accident():
    r = python("import sgl_kernel")
    assert r.returncode == 1
    assert "CPU reference" in r.stderr.splitlines()[-1]


def test_the_plugin_is_found_through_its_entry_point():
    r = python(
        "from importlib.metadata import entry_points as e; print([x.value for x in e(group='sglang.srt.plugins')])"
    )
    assert "sglang_cpu_ref:register" in r.stdout
