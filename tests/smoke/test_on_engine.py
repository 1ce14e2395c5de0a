"""The suite against the real engine: SGLang on the CPU reference engine, started by `sparkserve serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
PRESET = "tiny-w4a4-dflash2"
# The released 0.5.23 dies of these (sglang#40076, #31597); patches P24 to P26 refuse them.
DEADLY = "not (top_logprobs-million or top_logprobs_num-huge or input_ids-beyond or input_ids-negative or text-empty)"


def bounded() -> bool:
    """Whether the engine under test carries P24, P25 and P26."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager as Manager

    names = ("_validate_top_logprobs_num", "_validate_given_input_ids", "_validate_not_empty")
    return all(hasattr(Manager, n) for n in names)


def tells_its_head() -> bool:
    """Whether the engine under test carries P27."""
    from sglang.srt.layers import vocab_parallel_embedding

    return hasattr(vocab_parallel_embedding, "describe_lm_head")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """(exit code, report, output) of one quick run."""
    from tests.engine.server import BOOT_S, fixture_root

    folder = tmp_path_factory.mktemp("smoke")
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARKSERVE_FIXTURES": str(fixture_root()),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "smoke", PRESET, "--profile", "quick", "--machine", "cpu"]
    command += ["--report", str(folder), "--deadline", f"port={BOOT_S}"]
    command += [] if bounded() else ["-k", DEADLY]
    r = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=1500, check=False)
    return r.returncode, json.loads((folder / "report.json").read_text()), r.stdout + r.stderr


def test_quick_profile_is_good(run: tuple[int, dict[str, Any], str]) -> None:
    code, report, output = run
    failed = [(c["name"], c["problem"]) for c in report["checks"] if c["outcome"] in ("failed", "error")]
    assert failed == [], output[-3000:]
    assert (code, report["verdict"]) == (0, "good")


def test_it_ran_on_the_real_engine(run: tuple[int, dict[str, Any], str]) -> None:
    _, report, _ = run
    assert report["bound"]["hardware"].startswith("CPU reference engine")
    assert report["bound"]["preset"] == PRESET
    assert report["engine"]["algorithm"] == "DFLASH"
    assert report["engine"]["log"]["head_dtype"] == ("uint8" if tells_its_head() else None)
    assert {a["family"]: a["length"] for a in report["acceptance"]} == dict.fromkeys(
        ("prose", "code", "json", "chat"), 8.0
    )


def test_every_group_that_a_cpu_can_answer_ran(run: tuple[int, dict[str, Any], str]) -> None:
    _, report, _ = run
    ran = {c["group"] for c in report["checks"] if c["outcome"] == "passed"}
    assert ran >= {
        "startup", "fast_path", "chat", "tools", "json_schema", "reasoning", "boundaries", "logprobs", "agreement",
        "acceptance", "concurrency", "long_context", "workloads", "cancellation", "hostile",
    }  # fmt: skip
