"""The worker itself, on the CPU: what it times there, how it reports what fails, and that it keeps its protocol clean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.engine


def work(**job: object) -> tuple[list[dict], int]:
    done = subprocess.run(
        [sys.executable, "-m", "launch.tune._worker"], cwd=ROOT, input=json.dumps(job), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def item(name: str, **change: object) -> dict:
    base = {"id": name, "m": 4, "n": 64, "k": 32, "format": "bf16", "weight_bytes": 4096, "cold_bytes": 8192}
    return {**base, **change}


def test_a_copy_and_a_dense_gemm_are_timed() -> None:
    (ready, copy), code = work(role="copy", option="device", items=[], device="cpu", copy_bytes=1_000_000)
    assert code == 0
    assert ready["ready"]["device"] == "cpu"
    assert copy["id"] == "copy/device"
    assert len(copy["us"]) == 15
    assert min(copy["us"]) > 0


def test_one_bad_shape_is_reported_and_the_next_is_timed() -> None:
    said, code = work(role="bf16", option="cublas", device="cpu", items=[item("bad", n=-1), item("good")])
    assert code == 0
    assert "error" in said[1]
    assert len(said[2]["us"]) == 15


def test_a_layer_the_engine_cannot_prepare_here_is_an_error_with_its_words() -> None:
    said, code = work(
        role="fp4", option="flashinfer_cutlass", device="cpu", items=[item("x", n=256, k=128, format="nvfp4")]
    )
    assert code == 0
    assert "require SM100+" in said[-1]["error"]


def test_an_unknown_backend_is_an_error_of_each_item() -> None:
    said, _ = work(role="fp4", option="no-such", device="cpu", items=[item("a"), item("b")])
    assert [s["id"] for s in said[1:]] == ["a", "b"]
    assert all("no-such" in s["error"] for s in said[1:])


def test_without_a_gpu_it_says_so() -> None:
    said, code = work(role="copy", option="device", items=[])
    assert code == 1
    assert "no GPU" in said[0]["error"]
