"""Exit codes and log ends become a cause and a remedy, the specific before the general."""

from __future__ import annotations

import pytest

from smoke.causes import explain, signal_form
from smoke.errors import CONFIG, ENGINE, NOT_ADMITTED

CASES = [
    (-15, "", "earlyoom", NOT_ADMITTED),
    (143, "", "earlyoom", NOT_ADMITTED),
    (137, "", "SIGKILL", NOT_ADMITTED),
    (-9, "", "OOM killer", NOT_ADMITTED),
    (-9, "NVRM: nvAssertOkFailedNoLog: NV_ERR_NO_MEMORY", "NVRM", NOT_ADMITTED),
    (1, "OSError: [Errno 98] address already in use", "port is taken", ENGINE),
    (1, "torch.OutOfMemoryError: CUDA out of memory. Tried", "CUDA out of memory", ENGINE),
    (
        1,
        "Model architectures ['DFlash2DraftModel'] are not supported for now. Supported",
        "architecture",
        CONFIG,
    ),
    (1, "RuntimeError: SGLANG_CRASH_ON_JIT_COMPILE forbids compiling", "missing from the prebuilt", ENGINE),
    (1, "ninja: build stopped: subcommand failed", "failed to compile", ENGINE),
    (
        2,
        "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match",
        "refused a flag",
        CONFIG,
    ),
    (1, "huggingface_hub.errors.LocalEntryNotFoundError: x", "not in the local cache", CONFIG),
    (1, "ValueError: DFLASH fc.weight shape mismatch 1 2", "wrong quantization", CONFIG),
    (75, "guard: tripped MemAvailable 1.2 GB", "guard stopped", NOT_ADMITTED),
    (75, "", "not admitted", NOT_ADMITTED),
    (70, "", "gave up", ENGINE),
    (1, "Scheduler watchdog timeout (self.watchdog_timeout=300)", "watchdog", ENGINE),
    (1, "KeyError: 'weight_scale'", "raised an error", ENGINE),
    (0, "", "exit 0", ENGINE),
    (5, "", "exit 5", ENGINE),
    (None, "flashinfer.jit: Building JIT module topk; this can", "compiling kernels", ENGINE),
    (None, "Capture target verify CUDA graph begin. backend", "capturing CUDA graphs", ENGINE),
    (None, "Load weight begin. avail", "loading weights", ENGINE),
    (None, "Running FlashInfer autotune with cache: x", "autotuning", ENGINE),
    (None, "hello", "still starting", ENGINE),
]


@pytest.mark.parametrize(("code", "log", "words", "ends_with"), CASES)
def test_cause(code: int | None, log: str, words: str, ends_with: int) -> None:
    cause = explain(code, log)
    assert words in cause.title
    assert cause.code == ends_with
    assert len(cause.todo) > 10


def test_the_last_phase_that_began_is_named() -> None:
    log = "Load weight begin.\nLoad weight end.\nCapture target verify CUDA graph begin.\nBuilding JIT module topk;"
    assert "compiling" in explain(None, log).title


def test_signals_of_shells_and_docker_are_those_of_subprocess() -> None:
    assert [signal_form(c) for c in (143, 137, 1, -9, 255)] == [-15, -9, 1, -9, 255]
