"""Quantized DFlash drafts serve through the real engine and accept exactly as the BF16 draft does.

Patches P02 and P03 hold this up; on the released engine such a draft fails to load, or proposes noise. The
context's keys and values go the eager way here; that a GPU takes it too is in the contract of P03.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smoke.fixtures import cycles
from smoke.fixtures.layouts import FIXTURES

from .server import PARIS, REPO, Server

pytestmark = pytest.mark.engine

TOKENS = 64
# Draft -> --speculative-draft-model-quantization. One boot each; SPARKSERVE_ALL_DRAFTS=1 takes every layout.
FLAG = {
    "dflash2-nvfp4": "modelopt_fp4",
    "dflash2-mixed": "modelopt_mixed",
    "dflash2-w4a16": "compressed-tensors",
    "dflash2-nvfp4-fc": "modelopt_fp4",
    "dflash2-nvfp4-all": "modelopt_fp4",
    "dflash2-fp8": "modelopt_fp8",
    "dflash-nvfp4": "modelopt_fp4",
}
USUAL = ("dflash2-nvfp4", "dflash2-mixed", "dflash2-w4a16")
NAMES = tuple(FLAG) if os.environ.get("SPARKSERVE_ALL_DRAFTS") == "1" else USUAL


def built(root: Path, name: str) -> Path:
    """A quantized draft, built when absent."""
    subprocess.run(
        [sys.executable, "-m", "smoke.fixtures", "build", str(root), "--only", name],
        check=True, cwd=REPO, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return root / name


@pytest.mark.parametrize("name", NAMES)
def test_a_quantized_draft_accepts_as_the_bf16_one(fixtures: Path, tmp_path: Path, name: str) -> None:
    target, draft = fixtures / "qwen38-w4a4", built(fixtures, name)
    args = [
        "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(draft),
        "--speculative-draft-model-quantization", FLAG[name],
    ]  # fmt: skip
    with Server(target, tmp_path / "server.log", *args) as server:
        answer = server.generate(PARIS, TOKENS)
        assert answer["output_ids"] == cycles.expected(target, PARIS, TOKENS)[0]
        assert answer["meta_info"]["spec_accept_length"] == FIXTURES[name].accept, server.tail(20)
