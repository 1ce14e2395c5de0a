"""P12: with SGLANG_FLASHINFER_AUTOTUNE_FROZEN=1 a pass is tuned once; later boots run the kept tactics and never tune.

FlashInfer's own AutoTuner holds and files the tactics. Only what needs a device is replaced: streams, the capability, and the
timing itself (the pass under test puts a choice where the tuner keeps those it has timed).
"""

from __future__ import annotations

import contextlib
import json
import logging
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.usefixtures("engine", "sm121")
FROZEN = "SGLANG_FLASHINFER_AUTOTUNE_FROZEN"
OP = "('fp4_gemm', 'Runner')"


class Boot:
    """One start of the engine: a tuner that knows nothing, and the passes that it makes."""

    def __init__(self, monkeypatch, *, draft: str = "DFLASH") -> None:
        from sglang.srt.model_executor.runner import flashinfer_autotune as module

        try:
            from sglang.srt.model_executor.runner import frozen_tactics
        except ImportError:  # the released engine
            pass
        else:
            frozen_tactics._begun.clear()
        from flashinfer.autotuner import AutoTuner

        monkeypatch.setattr(AutoTuner, "_instance", None)
        self.module, self.tuner = module, AutoTuner.get()
        stream = SimpleNamespace(wait_stream=lambda _s: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_a: stream)
        device = SimpleNamespace(stream=lambda _s: contextlib.nullcontext())
        monkeypatch.setattr(torch, "get_device_module", lambda *_a: device)
        config = SimpleNamespace(quantization="modelopt_fp4", hf_config=SimpleNamespace())
        self.runner = SimpleNamespace(
            device="cuda", dtype=torch.bfloat16, is_draft_worker=False, model_config=config, gpu_id=0,
            forward_stream=stream, spec_algorithm=draft,
        )  # fmt: skip

    def run(self, tactic: int, *, run_lm_head: bool = True) -> dict[str, object]:
        """One pass in which timing would choose `tactic`: whether it tuned, and what serving would then use."""
        seen: dict[str, object] = {}

        def forward() -> None:
            seen["tuned"] = self.tuner.is_tuning_mode
            if seen["tuned"]:
                self.tuner._file_configs[OP] = ("Runner", tactic)

        self.module.run_flashinfer_autotune_forward(self.runner, forward, run_lm_head=run_lm_head)
        return {**seen, "tactic": self.tuner._file_configs.get(OP, (None, None))[1]}

    @property
    def path(self):
        return self.module.flashinfer_autotune_cache_path(self.runner)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(FROZEN, raising=False)
    return tmp_path


@pytest.fixture
def frozen(cache, monkeypatch):
    monkeypatch.setenv(FROZEN, "1")
    return cache


def test_second_boot_runs_what_the_first_chose_and_never_tunes(frozen, monkeypatch, caplog):
    assert Boot(monkeypatch).run(3) == {"tuned": True, "tactic": 3}
    with caplog.at_level(logging.INFO):
        assert Boot(monkeypatch).run(4) == {"tuned": False, "tactic": 3}
        assert Boot(monkeypatch).run(5) == {"tuned": False, "tactic": 3}
    assert "FlashInfer tactics frozen: pass head-1 uses" in caplog.text


def test_a_pass_that_was_never_tuned_still_is(frozen, monkeypatch):
    Boot(monkeypatch).run(3)
    boot = Boot(monkeypatch)
    assert boot.run(4)["tuned"] is False
    assert boot.run(4, run_lm_head=False)["tuned"] is True
    boot = Boot(monkeypatch)
    assert [boot.run(9)["tuned"], boot.run(9, run_lm_head=False)["tuned"]] == [False, False]


def test_another_flashinfer_is_said_and_tuned_afresh(frozen, monkeypatch, caplog):
    first = Boot(monkeypatch)
    first.run(3)
    kept = first.path.read_text()
    from flashinfer.autotuner import autotuner

    changed = {**autotuner._collect_metadata(), "cublas_version": "0.0.1"}
    monkeypatch.setattr(autotuner, "_collect_metadata", lambda: changed)
    monkeypatch.setattr("flashinfer.autotuner._collect_metadata", lambda: changed)
    with caplog.at_level(logging.WARNING):
        boot = Boot(monkeypatch)
        assert boot.run(4) == {"tuned": True, "tactic": 4}
    assert "FlashInfer tactics NOT frozen" in caplog.text
    assert "cublas_version" in caplog.text
    assert boot.path.with_name(boot.path.name + ".stale").read_text() == kept
    assert Boot(monkeypatch).run(5) == {"tuned": False, "tactic": 4}


def test_tactics_changed_by_another_hand_are_not_run(frozen, monkeypatch, caplog):
    boot = Boot(monkeypatch)
    boot.run(3)
    data = json.loads(boot.path.read_text())
    data[OP] = ["Runner", 7]
    boot.path.write_text(json.dumps(data))
    assert Boot(monkeypatch).run(4) == {"tuned": True, "tactic": 4}
    assert "not the one that was kept" in caplog.text


def test_key_tells_drafts_apart(frozen, monkeypatch):
    assert Boot(monkeypatch).path != Boot(monkeypatch, draft="NONE").path
    assert Boot(monkeypatch).path == Boot(monkeypatch).path


@pytest.mark.guard
def test_without_the_switch_every_boot_tunes_on_the_old_path(cache, monkeypatch):
    first = Boot(monkeypatch)
    assert first.run(3)["tuned"] is True
    assert Boot(monkeypatch).run(4)["tuned"] is True
    assert Boot(monkeypatch).path == Boot(monkeypatch, draft="NONE").path == first.path
    assert not list(cache.rglob("*.frozen*"))
