"""An engine that is broken on purpose does not pass, and by the check that is meant for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.smoke.mutants import environment
from tests.smoke.test_on_engine import tells_its_head

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.engine


def smoke(tmp: Path, mutant: str, select: str) -> tuple[int, dict[str, Any]]:
    """(exit code, check by name) of a full run of some checks on a mutant of the CPU engine."""
    from tests.engine.server import BOOT_S, fixture_root

    env = environment(tmp / "mutant", mutant)
    env |= {"SPARKSERVE_FIXTURES": str(fixture_root()), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-m", "smoke", "tiny-w4a4-dflash2", "--machine", "cpu", "--profile", "full"]
    command += ["-k", select, "--report", str(tmp), "--deadline", f"port={BOOT_S}"]
    r = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=1500, check=False)
    log = (tmp / "engine-1-first-boot.log").read_text()
    assert "is broken on purpose" in log, r.stdout[-2000:] + r.stderr[-2000:]
    return r.returncode, {c["name"]: c for c in json.loads((tmp / "report.json").read_text())["checks"]}


def test_a_dropped_state_commit_is_seen_by_the_control_arm_alone(tmp_path: Path) -> None:
    """Text and acceptance stay planted without the recurrent state; the control arm's log-probabilities do not."""
    code, checks = smoke(tmp_path, "commit-dropped", "control_arm or planted_exact or planted_length")
    assert checks["planted_exact"]["outcome"] == checks["planted_length"]["outcome"] == "passed"
    assert checks["control_arm"]["ident"] == "control.logprobs", checks
    assert code == 1


def test_a_head_unpacked_in_silence_is_seen(tmp_path: Path) -> None:
    """Text and acceptance stay planted with a dense head; the engine's own word about its head does not."""
    if not tells_its_head():
        pytest.skip("the engine does not carry P27")
    code, checks = smoke(
        tmp_path, "head-unpacked", "head_as_held or quantized_head or planted_exact or planted_length"
    )
    assert checks["planted_exact"]["outcome"] == checks["planted_length"]["outcome"] == "passed"
    assert checks["head_as_held"]["ident"] == "fast.head_held", checks
    assert code == 1
