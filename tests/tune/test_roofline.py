"""The roofline by hand-computed numbers, and bench/roofline.py as an operator runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.commandline import computed
from launch.gemms import from_table
from launch.planfacts import plan_facts, table
from launch.registry import Registry
from launch.resolve import resolve
from launch.roofline import Step, step

ROOT = Path(__file__).resolve().parents[2]
NAME = "qwen3.8-27b-nvfp4-dflash2"
HEAD = 248_320 * 5_120 * 9 // 16  # 715,161,600 B
STATE = 48 * (48 * 128 * 128 * 2 + 10_240 * 3 * 2)  # one slot in BF16, with its convolution window


def of(name: str, machine: str = "gb10-128", **settings: object) -> Step:
    loaded = Registry().load(name)
    r = computed(resolve(loaded, machine))
    listed = from_table(loaded.target.repo or "", table("gemms"))
    assert listed is not None
    return step(r, plan_facts(r), listed[0], **settings)  # type: ignore[arg-type]


def test_every_term_of_a_dflash2_step_on_a_gb10() -> None:
    s = of(NAME, context=1000)
    # 64 MLPs at 4.5 bits, 48 + 16 attention blocks in FP8, b and a in BF16
    assert s.target == 9_625_927_680 + 7_214_202_880 + 47_185_920
    assert s.head == 2 * HEAD == 1_430_323_200  # verify, and the selector
    assert s.draft == 3_848_817_896
    # 16 layers x K and V x 4 heads x 256 in FP8; draft: 5 x 2 x 8 x 128 in FP8
    assert s.kv == 1000 * (32_768 + 10_240)
    assert s.state == 9 * STATE == 706_019_328  # one read, eight written
    assert s.total == s.target + s.head + s.draft + s.kv + s.state


def test_the_ceiling_is_acceptance_times_bandwidth_over_bytes() -> None:
    s = Step(target=10**9, head=0, draft=10**9, kv=0, state=0, requests=2, context=0)
    assert s.ceiling(200e9, 4) == pytest.approx(4 * 2 * 200e9 / 2e9)


def test_requests_share_weights_and_not_kv_or_states() -> None:
    one, four = of(NAME, context=1000), of(NAME, context=1000, requests=4)
    assert (four.target, four.head, four.draft) == (one.target, one.head, one.draft)
    assert (four.kv, four.state) == (4 * one.kv, 4 * one.state)


def test_without_a_draft_it_lies_above_what_was_measured() -> None:
    """Facts 3.1: 11.2 to 12.7 tok/s without speculation on a GB10. A ceiling below that would be wrong."""
    s = of("qwen3.8-27b-nvfp4-nodraft")
    assert (s.draft, s.head) == (0, HEAD)
    assert 12.7 < s.ceiling(233e9, 1) < 14


def test_mtp_reads_the_head_for_each_token_and_says_what_it_leaves_out() -> None:
    s = of("qwen3.8-27b-nvfp4-mtp")
    assert s.head == 4 * HEAD
    assert any("MTP" in n for n in s.notes)


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "bench/roofline.py", *args], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": "", **env},
    )  # fmt: skip


def test_the_command_gives_bytes_and_ceilings(tmp_path: Path) -> None:
    done = run(NAME, "--machine", "gb10-128", "--json", "--acceptance", "4", SPARKSERVE_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    total = data["bytes"]["total"]
    assert data["ceiling"] == {"4": round(4 * 233e9 / total, 2)}
    assert "pangoleen" in data["bandwidth_source"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["no-such-preset"], 2, "no-such-preset"),
        ([NAME, "--machine", "h200"], 2, "does not support"),
        ([NAME, "--acceptance", "9"], 2, "more than the 8 tokens"),
        (["nvidia-qwen3.6-27b-nvfp4"], 78, "gemms.toml"),
    ],
)
def test_what_is_not_known_is_one_line(tmp_path: Path, args: list[str], code: int, said: str) -> None:
    done = run(*args, SPARKSERVE_CACHE=str(tmp_path))
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
