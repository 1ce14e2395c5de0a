"""P11: FlashInfer's b12x and auto can be asked for as NVFP4 GEMM backends, are tuned, and b12x is SM120's default.

Backends are resolved by SGLang's own code for a pretended device; no kernel runs.
"""

from __future__ import annotations

import argparse
import types

import pytest
import torch

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def resolve(monkeypatch):
    """Resolve --fp4-gemm-backend for a pretended compute capability and CUDA version."""
    from sglang.srt.layers.quantization import fp4_utils

    monkeypatch.setattr(fp4_utils, "FP4_GEMM_RUNNER_BACKEND", None)

    def go(capability: tuple[int, int], flag: str = "auto", cuda: str | None = "13.0"):
        kernel = types.SimpleNamespace(fp4_gemm_runner_backend=flag)
        monkeypatch.setattr(fp4_utils, "get_exec", lambda: types.SimpleNamespace(kernel=kernel))
        monkeypatch.setattr(
            fp4_utils, "get_platform", lambda: types.SimpleNamespace(is_sm100=capability[0] == 10)
        )
        monkeypatch.setattr(fp4_utils, "is_cuda", lambda: True)
        monkeypatch.setattr(fp4_utils, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        fp4_utils.initialize_fp4_gemm_config()
        return fp4_utils.get_fp4_gemm_runner_backend()

    return go


@pytest.mark.parametrize(("flag", "api"), [("flashinfer_b12x", "b12x"), ("flashinfer_auto", "auto")])
@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
def test_the_choice_reaches_flashinfer_by_its_own_name(resolve, capability, flag, api):
    backend = resolve(capability, flag)
    assert backend.value == flag
    assert backend.get_flashinfer_backend() == api
    assert backend.is_flashinfer()
    assert not backend.is_auto()
    assert not backend.is_marlin()
    assert backend.supports_swiglu_fusion()


@pytest.mark.parametrize("flag", ["flashinfer_b12x", "flashinfer_auto"])
def test_the_command_line_takes_it(flag):
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(["--model-path", "dummy", "--fp4-gemm-backend", flag])
    assert parsed.fp4_gemm_runner_backend == flag


def test_b12x_is_what_auto_takes_on_sm120(resolve):
    assert resolve((12, 0)).value == "flashinfer_b12x"


def runner(quantization: str = "modelopt_mixed"):
    algorithm = types.SimpleNamespace(is_speculative=lambda: False)
    config = types.SimpleNamespace(quantization=quantization)
    model = types.SimpleNamespace(modules=list)
    return types.SimpleNamespace(
        device="cuda", model_config=config, spec_algorithm=algorithm, is_draft_worker=False, model=model
    )


@pytest.fixture
def autotunes(resolve, monkeypatch):
    """Whether the engine would autotune a modelopt_fp4 model with this backend on SM121."""
    from sglang.srt.layers.quantization import fp4_utils
    from sglang.srt.model_executor.runner import flashinfer_autotune

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_a, **_k: (12, 1))

    def go(flag: str) -> bool:
        backend = resolve((12, 1), flag)
        monkeypatch.setattr(fp4_utils, "get_fp4_gemm_runner_backend", lambda: backend)
        return flashinfer_autotune.should_run_flashinfer_autotune(runner("modelopt_fp4"))

    return go


@pytest.mark.parametrize("flag", ["flashinfer_b12x", "flashinfer_auto"])
def test_autotune_covers_it(autotunes, flag):
    assert autotunes(flag)


@pytest.mark.guard
@pytest.mark.parametrize(
    ("flag", "tuned"),
    [
        ("flashinfer_cutlass", True),
        ("flashinfer_cutedsl", True),
        ("flashinfer_cudnn", False),
        ("marlin", False),
    ],
)
def test_autotune_of_the_others_is_as_released(autotunes, flag, tuned):
    assert autotunes(flag) is tuned


@pytest.mark.guard
@pytest.mark.parametrize(
    ("capability", "cuda", "backend"),
    [
        ((8, 0), "13.0", "marlin"),
        ((9, 0), "13.0", "marlin"),
        ((10, 0), "13.0", "flashinfer_cutedsl"),
        ((12, 1), "13.0", "flashinfer_cutlass"),
        ((12, 0), "12.8", "flashinfer_cutlass"),
        ((12, 0), None, "flashinfer_cutlass"),
    ],
)
def test_auto_elsewhere_is_as_released(resolve, capability, cuda, backend):
    assert resolve(capability, cuda=cuda).value == backend


@pytest.mark.guard
def test_without_cute_dsl_sm120_keeps_cutlass(resolve, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "cutlass" else find(name, *a)
    )
    assert resolve((12, 0)).value == "flashinfer_cutlass"
