"""The report's ceilings: hand-computed for a preset whose layers are listed, silent where something is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke.report.ceiling import with_ceilings
from smoke.report.model import Load

NAME = "qwen3.8-27b-nvfp4-dflash2"


def load(accept: float | None = 4.0, **change: object) -> Load:
    base = {
        "prompt": 1000, "output": 200, "concurrency": 1, "asked": "1000/200@1", "family": "code", "ttft_s": 1.0,
        "latency_s": 5.0, "decode_rate": 30.0, "throughput": 28.0, "accept_length": accept,
    }  # fmt: skip
    return Load.model_validate({**base, **change})


@pytest.fixture(autouse=True)
def nothing_tuned_or_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSERVE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def test_one_stream_of_a_dflash2_pair() -> None:
    (w,), peak = with_ceilings([load()], NAME, "gb10-128")
    bytes_ = 16_887_316_480 + 1_430_323_200 + 3_848_817_896 + 1100 * (32_768 + 10_240) + 706_019_328
    assert w.ceiling == pytest.approx(4 * 233e9 / bytes_, rel=1e-4)
    assert peak is not None
    assert peak.startswith("233 GB/s")


def test_a_stream_among_four_has_less() -> None:
    (one, four), _ = with_ceilings([load(), load(concurrency=4)], NAME, "gb10-128")
    assert one.ceiling is not None
    assert four.ceiling is not None
    assert one.ceiling / 4 < four.ceiling < one.ceiling


def test_without_an_acceptance_nothing_is_said_of_a_draft() -> None:
    (w,), _ = with_ceilings([load(None)], NAME, "gb10-128")
    assert w.ceiling is None
    (w,), _ = with_ceilings([load(None)], "qwen3.8-27b-nvfp4-nodraft", "gb10-128")
    assert w.ceiling is not None


@pytest.mark.parametrize(
    ("preset", "machine"),
    [("tiny-w4a4-dflash2", "cpu"), ("nvidia-qwen3.6-27b-nvfp4", "gb10-128"), ("no-such", "gb10-128")],
)
def test_where_something_is_unknown_the_report_stays_silent(preset: str, machine: str) -> None:
    loads, peak = with_ceilings([load()], preset, machine)
    assert (loads[0].ceiling, peak) == (None, None)
