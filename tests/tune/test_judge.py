"""Choosing from recorded timings: a clear winner, ties, noise, a loser, failures, and what comes of them."""

from __future__ import annotations

import pytest

from launch.tune import judge
from launch.tune.judge import Verdict
from launch.tune.work import Candidate
from tests.tune.recorded import GEMMS, items, preset, timings


def verdict(role: str, records: dict, found=None) -> Verdict:
    found = found or items()
    return next(v for v in judge.judge(found, records, GEMMS) if v.role == role)


def test_a_clear_winner_is_chosen_and_becomes_an_engine_key() -> None:
    found = items("12.1")
    won = verdict("fp4", timings(found, flashinfer_cudnn=8.0), found)
    assert (won.chosen.option, won.today.option) == ("flashinfer_cudnn", "flashinfer_cutlass")
    assert won.speedup == pytest.approx(1.25, rel=1e-3)
    assert judge.settings([won]) == ({"fp4_gemm_backend": "flashinfer_cudnn"}, {})


def test_a_tie_keeps_todays_choice_and_changes_nothing() -> None:
    found = items("12.1")
    stays = verdict("fp4", timings(found, flashinfer_cudnn=9.85), found)
    assert stays.chosen == stays.today
    assert judge.settings([stays]) == ({}, {})


def test_noise_wider_than_the_gain_keeps_todays_choice() -> None:
    found = items("12.1")
    records = timings(found, flashinfer_cudnn=8.8)
    for key, record in records.items():
        if key.startswith("fp4/flashinfer_cudnn "):
            record["us"] = [t * (0.85 if i % 2 else 1.15) for i, t in enumerate(record["us"])]
    assert verdict("fp4", records, found).chosen.option == "flashinfer_cutlass"


def test_losers_are_never_chosen() -> None:
    found = items("12.1")
    slow = dict.fromkeys(("flashinfer_cudnn", "flashinfer_b12x", "flashinfer_auto", "marlin"), 30.0)
    assert verdict("fp4", timings(found, **slow), found).chosen.option == "flashinfer_cutlass"


def test_one_failed_shape_takes_a_candidate_out_although_the_rest_is_fast() -> None:
    found = items("12.1")
    records = timings(found, flashinfer_b12x=2.0, flashinfer_cudnn=9.0)
    broken = next(i for i in found if i.candidate.option == "flashinfer_b12x" and not i.candidate.autotune)
    records[broken.key] = {"error": "RuntimeError: no kernel"}
    won = verdict("fp4", records, found)
    assert (won.chosen.option, won.chosen.autotune) == (
        "flashinfer_b12x",
        True,
    ) or won.chosen.option == "flashinfer_cudnn"
    assert won.chosen != broken.candidate


def test_without_todays_numbers_nothing_is_chosen() -> None:
    found = items("12.1")
    records = {k: r for k, r in timings(found, marlin=1.0).items() if "flashinfer_cutlass" not in k}
    stays = verdict("fp4", records, found)
    assert stays.chosen.option == "flashinfer_cutlass"
    assert "not measured whole" in stays.why


def test_the_count_of_layers_weighs() -> None:
    """cudnn loses on one shape of four layers and wins on another: the sum decides, not the number of shapes won."""
    found = items("12.1")
    records = timings(found)
    for item in found:
        if item.candidate.option == "flashinfer_cudnn" and item.gemm is not None:
            scale = 0.5 if item.gemm.name == "down_proj" else 1.8
            records[item.key] = {"us": [10 * scale] * 15}
    assert verdict("fp4", records, found).chosen.option == "flashinfer_cutlass"


def test_the_fp8_path_becomes_an_environment_variable() -> None:
    found = items("12.0")
    won = verdict("fp8", timings(found, marlin=5.0), found)
    assert judge.settings([won])[1] == {"SGLANG_FORCE_FP8_MARLIN": "1"}


def test_on_unified_memory_autotune_is_shown_but_never_turned_on() -> None:
    on_gb10 = preset("qwen3.8-27b-nvfp4-dflash2", "gb10-128")
    found = items("12.1", on_gb10)
    records = timings(found)
    for item in found:
        if item.candidate.autotune:
            records[item.key] = {"us": [1.0] * 15}
    assert any(i.candidate.autotune for i in found)
    won = verdict("fp4", records, found)
    assert not won.chosen.autotune
    on_card = preset("qwen3.8-27b-nvfp4-dflash2", "rtx-pro-6000", disable_flashinfer_autotune=True)
    found = items("12.0", on_card)
    records = timings(found)
    for item in found:
        if item.candidate.autotune:
            records[item.key] = {"us": [1.0] * 15}
    won = verdict("fp4", records, found)
    assert judge.settings([won])[0]["disable_flashinfer_autotune"] is False


def test_share_of_bandwidth_is_bytes_over_time_over_the_measured_copy() -> None:
    found = items("9.0")
    records = timings(found)
    records["copy/device"] = {"us": [1000.0] * 5}
    peak = judge.bandwidth(records, 1_000_000_000)
    assert peak == pytest.approx(2e12)
    row = next(r for r in judge.table(found, records, peak) if "1024x256 m8" in r.key)
    # 1024 x 256 codes and scales at 9/16 B, eight rows of 1280 BF16 values, in 10 us
    assert row.share == pytest.approx((147_456 + 2 * 8 * 1280) / 10e-6 / 2e12)


def test_what_the_gpu_has_decides_the_candidates() -> None:
    def options(capability: str) -> set[str]:
        return {i.candidate.option for i in items(capability) if i.candidate.role == "fp4"}

    assert options("9.0") == {"marlin"}
    assert options("12.1") == options("12.0") >= {"flashinfer_b12x", "flashinfer_auto", "flashinfer_cutlass"}
    todays = [
        next(i for i in items(c) if i.candidate.role == "fp4").candidate.option for c in ("12.0", "12.1")
    ]
    assert todays == ["flashinfer_b12x", "flashinfer_cutlass"]
    kda = [i for i in items("12.1") if i.candidate.option == "kda"]
    assert kda
    assert kda[0].candidate == Candidate("fp8", "kda", env={"SGLANG_KDA_ON_SM121": "1"})
    assert not [i for i in items("12.0") if i.candidate.option == "kda"]
