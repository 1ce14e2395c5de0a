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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """(exit code, report, output) of one quick run, without the fields that end this release (see hostile)."""
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
