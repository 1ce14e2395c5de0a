"""Driving workers: crashes, hangs, time, a kill in between. The workers are pretended (fake_worker.py), the processes real."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from launch.errors import EngineFailed
from launch.tune import profile, run
from launch.tune.measure import Limits, Outcome, measure
from tests.tune.recorded import GEMMS, items, preset

pytestmark = pytest.mark.suite
ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_worker.py")
KEY = profile.Key(gpu="GB10", capability="12.1", driver="580.95", packages={"sglang": "0.5.23"})


def go(
    tmp_path: Path, how: str, records: dict, limits: Limits | None = None, stop_after: int = 10**6
) -> Outcome:
    count = itertools.count(1)

    def keep(key: str, record: dict) -> None:
        records[key] = record
        if next(count) >= stop_after:
            raise KeyboardInterrupt

    command = [sys.executable, str(FAKE), how, str(tmp_path / "starts")]
    good = {k: r for k, r in records.items() if r.get("us")}
    limits = limits or Limits(60, 30)
    return measure(items("12.1"), good, command, limits, keep, cwd=ROOT, log=tmp_path / "log")


def of(records: dict, name: str) -> list[dict]:
    return [r for k, r in records.items() if k.startswith(f"{name} ")]


def test_every_item_gets_its_record(tmp_path: Path) -> None:
    records: dict = {}
    out = go(tmp_path, "well", records)
    assert set(records) == {i.key for i in items("12.1")}
    assert (out.measured, out.failed, out.unfinished) == (len(records), 0, 0)
    assert out.device == {"device": "pretended"}


def test_a_crash_costs_its_shape_and_after_two_the_candidate(tmp_path: Path) -> None:
    records: dict = {}
    out = go(tmp_path, "segfault", records)
    b12x = of(records, "fp4/flashinfer_b12x")
    assert [bool(r.get("us")) for r in b12x].count(True) == 2  # one of each of its two processes
    assert any("signal 11" in r.get("error", "") for r in b12x)
    assert any("given up" in r.get("error", "") for r in b12x)
    assert all(r.get("us") for r in of(records, "fp4/flashinfer_cutlass") + of(records, "fp4/marlin"))
    assert out.unfinished == 0


def test_a_hang_is_ended_and_the_others_are_measured(tmp_path: Path) -> None:
    records: dict = {}
    go(tmp_path, "hang", records, Limits(120, 1.0))
    assert any("no result within 1 s" in r.get("error", "") for r in of(records, "fp4/flashinfer_b12x"))
    assert all(r.get("us") for r in of(records, "fp4/marlin"))


def test_an_error_of_a_backend_is_recorded_as_it_says(tmp_path: Path) -> None:
    records: dict = {}
    go(tmp_path, "raises", records)
    assert {r["error"] for r in of(records, "fp4/flashinfer_b12x")} == {
        "ValueError: K must be a multiple of 32"
    }


def test_time_ends_it_and_the_next_run_goes_on(tmp_path: Path) -> None:
    records: dict = {}
    ticks = itertools.count()
    out = go(tmp_path, "well", records, Limits(12, 30, clock=lambda: float(next(ticks))))
    assert 0 < out.unfinished < len(items("12.1"))
    assert len(records) + out.unfinished == len(items("12.1"))
    again = go(tmp_path, "well", records)
    assert again.unfinished == 0
    assert again.measured == out.unfinished
    assert again.kept == out.measured


def test_after_a_kill_nothing_is_measured_twice(tmp_path: Path) -> None:
    records: dict = {}
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, "well", records, stop_after=7)
    assert len(records) == 7
    out = go(tmp_path, "well", records)
    assert (out.kept, out.measured) == (7, len(items("12.1")) - 7)


def test_a_worker_that_finds_no_gpu_ends_it_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="PyTorch finds no GPU"):
        go(tmp_path, "no-gpu", {})


def test_a_run_keeps_numbers_on_disk_and_tries_failures_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKSERVE_CACHE", str(tmp_path / "state"))
    resolved = preset()

    def tune(how: str) -> run.Done:
        return run.tune(
            resolved, KEY, GEMMS, items("12.1"), minutes=1, patience=30, again=False, cwd=ROOT, log=tmp_path / "log",
            command=[sys.executable, str(FAKE), how, str(tmp_path / "starts")], say=lambda _text: None,
        )  # fmt: skip

    first = tune("raises")
    assert first.outcome.failed
    on_disk = profile.load(first.path)
    assert on_disk is not None
    assert on_disk.records == first.profile.records
    second = tune("well")
    assert second.outcome.measured == first.outcome.failed
    assert second.profile.presets[resolved.preset.name].finished
    assert second.profile.bandwidth == pytest.approx(2 * run.COPY_BYTES / 10e-6)
