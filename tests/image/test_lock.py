"""Locks are fresh: offline by the hash of their inputs, online (marked `container`) by resolving them again."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docker_lock", ROOT / "docker" / "lock.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["docker_lock"] = module
    spec.loader.exec_module(module)
    return module


def test_every_lock_was_compiled_from_the_inputs_that_stand_beside_it(lock):
    named = lock.read((lock.LOCKS / "locks.toml").read_text())
    assert {(n.name, n.python, n.arch) for n in named} >= {
        ("image", "3.13", a) for a in ("x86_64", "aarch64")
    }
    for one in named:
        first = one.path.read_text().partition("\n")[0]
        assert first == one.header(), f"{one.path.name} is not fresh: run make lock"


def test_header_moves_with_every_input(lock, tmp_path):
    for name in ("image.in", "image-overrides.txt"):
        shutil.copy(lock.LOCKS / name, tmp_path)
    one = lock.Lock("image", "image.in", "3.13", "x86_64", "image-overrides.txt")
    seen = {one.header(tmp_path), lock.Lock("image", "image.in", "3.13", "aarch64", None).header(tmp_path)}
    for name in ("image.in", "image-overrides.txt"):
        with (tmp_path / name).open("a") as file:
            file.write("# more\n")
        seen.add(one.header(tmp_path))
    assert len(seen) == 4


def test_engine_locks_pin_the_wheels_of_the_series(lock):
    wanted = lock.engine_locks((ROOT / "patches" / "series.toml").read_text())
    assert len(wanted) == 2
    for path, text in wanted.items():
        assert path.read_text() == text, f"{path.name} is not fresh: run make lock"


def test_series_without_a_wheel_for_the_image_is_refused(lock):
    text = '[base]\nversion = "1"\n[base.wheels]\n"sglang-1-cp313-cp313-manylinux_2_34_x86_64.whl" = "00"\n'
    with pytest.raises(ValueError, match="0 wheels of cp313 for aarch64"):
        lock.engine_locks(text)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_compiler_and_runtime_are_of_cuda_13_0(arch):
    """Unpinned, nvcc resolves to 13.5 beside 13.0 headers."""
    text = (ROOT / "docker" / "locks" / f"image-cp313-{arch}.txt").read_text()
    found = dict(
        re.findall(r"^(nvidia-cuda-(?:nvcc|crt|runtime|nvrtc|cccl)|cuda-toolkit)==(\S+)", text, re.M)
    )
    assert set(found) >= {"nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "cuda-toolkit"}
    assert {v.rsplit(".", len(v.split(".")) - 2)[0] for v in found.values()} == {"13.0"}


def test_every_pin_has_a_hash():
    for path in (ROOT / "docker" / "locks").glob("*-cp313-*.txt"):
        entries = re.split(r"\n(?=\S)", path.read_text().strip())
        pins = [e for e in entries if not e.startswith("#")]
        assert pins
        assert all("--hash=sha256:" in e for e in pins), path.name


def test_every_override_and_every_pruned_path_has_its_reason():
    overrides = (ROOT / "docker" / "locks" / "image-overrides.txt").read_text().splitlines()
    lines = [s for s in overrides if s.strip() and not s.startswith("#")]
    assert lines
    for line in lines:
        pin, sign, why = line.partition("#")
        assert sign, line
        assert len(why.split()) >= 2, line
        assert pin.strip().endswith("; sys_platform == 'never'"), line
    rules = tomllib.loads((ROOT / "docker" / "build" / "prune.toml").read_text())["prune"]
    for rule in rules:
        assert rule["paths"]
        assert len(rule["why"].split()) >= 3, rule


def test_what_is_overridden_is_in_no_image_lock():
    overrides = (ROOT / "docker" / "locks" / "image-overrides.txt").read_text()
    gone = set(re.findall(r"^([a-z0-9-]+) ;", overrides, re.M))
    assert "tilelang" in gone
    for arch in ("x86_64", "aarch64"):
        text = (ROOT / "docker" / "locks" / f"image-cp313-{arch}.txt").read_text()
        assert gone.isdisjoint(re.findall(r"^([a-z0-9.-]+)==", text, re.M))


@pytest.mark.container
@pytest.mark.timeout(600)
def test_resolving_again_changes_nothing():
    if shutil.which("uv") is None:
        pytest.skip("no uv on PATH")
    argv = [sys.executable, str(ROOT / "docker" / "lock.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 69:
        pytest.skip(f"no package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
