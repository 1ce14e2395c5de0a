"""P20: the fused SiLU+FP4-quantize path is taken only where down_proj's GEMM takes its result.

The fusion hands `down_proj` a prequantized (fp4, scale) pair. Marlin, the NVFP4 GEMM of every GPU
before Blackwell, multiplies plain activations; an NVFP4_AWQ down_proj scales plain inputs first.
No kernel runs: the backend is resolved by SGLang's own code for a pretended device.
"""

from __future__ import annotations

import types

import pytest
import torch

pytestmark = pytest.mark.usefixtures("engine")

HIDDEN, INTERMEDIATE = 64, 128


@pytest.fixture
def fp4_backend(monkeypatch):
    """Resolve --fp4-gemm-backend for a pretended compute capability, with SGLang's own code."""
    from sglang.srt.layers.quantization import fp4_utils

    monkeypatch.setattr(fp4_utils, "FP4_GEMM_RUNNER_BACKEND", None)
    monkeypatch.delenv("SGLANG_DISABLE_SILU_FP4_QUANT_FUSION", raising=False)

    def resolve(capability: tuple[int, int], flag: str = "auto"):
        kernel = types.SimpleNamespace(fp4_gemm_runner_backend=flag)
        platform = types.SimpleNamespace(is_sm100=capability[0] == 10)
        monkeypatch.setattr(fp4_utils, "get_exec", lambda: types.SimpleNamespace(kernel=kernel))
        monkeypatch.setattr(fp4_utils, "get_platform", lambda: platform)
        monkeypatch.setattr(fp4_utils, "is_cuda", lambda: True)
        monkeypatch.setattr(fp4_utils, "get_device_capability", lambda: capability)
        fp4_utils.initialize_fp4_gemm_config()
        return fp4_utils.get_fp4_gemm_runner_backend()

    return resolve


def nvfp4_mlp(*, awq: bool = False, exclude: tuple[str, ...] = ()):
    """The dense MLP of a Qwen3.5 layer, as the model builds it from a serialized NVFP4 checkpoint."""
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config
    from sglang.srt.models.qwen2_moe import Qwen2MoeMLP
    from sglang.srt.models.qwen3_5 import _maybe_enable_silu_fp4_quant_fusion

    packed = {"gate_up_proj": ["gate_proj", "up_proj"]}
    config = ModelOptFp4Config(True, None, 16, list(exclude), packed, is_awq=awq)
    mlp = Qwen2MoeMLP(HIDDEN, INTERMEDIATE, "silu", quant_config=config, prefix="model.layers.0.mlp")
    _maybe_enable_silu_fp4_quant_fusion(mlp)
    return mlp


def inputs_of_down_proj(mlp, monkeypatch) -> list:
    """Run the MLP's forward with recording GEMMs; return what down_proj was given."""
    import flashinfer

    seen: list = []

    def fused(x, mask, scale):  # stands in for the FlashInfer kernel: [1, M, 2I] -> codes, scales
        m = x.shape[1]
        return torch.zeros(m, INTERMEDIATE // 2, 1, dtype=torch.uint8), torch.zeros(32, 4, 1, 4, 2, 1)

    def gate_up(layer, x, bias=None):
        return torch.ones(x.shape[0], 2 * INTERMEDIATE, dtype=torch.bfloat16)

    def down(layer, x, bias=None):
        seen.append(x)
        return torch.zeros(4, HIDDEN, dtype=torch.bfloat16)

    monkeypatch.setattr(flashinfer, "silu_and_mul_scaled_nvfp4_experts_quantize", fused)
    monkeypatch.setattr(mlp.act_fn, "forward", lambda x: x[..., :INTERMEDIATE])
    monkeypatch.setattr(mlp.gate_up_proj.quant_method, "apply", gate_up)
    monkeypatch.setattr(mlp.down_proj.quant_method, "apply", down)
    mlp.down_proj.input_scale_inv = torch.ones(())
    mlp(torch.ones(4, HIDDEN, dtype=torch.bfloat16))
    return seen


@pytest.mark.parametrize(
    ("capability", "flag"),
    [((8, 0), "auto"), ((8, 9), "auto"), ((9, 0), "auto"), ((10, 0), "marlin"), ((12, 1), "marlin")],
)
def test_marlin_down_proj_gets_plain_activations(fp4_backend, monkeypatch, capability, flag):
    assert fp4_backend(capability, flag).is_marlin()
    mlp = nvfp4_mlp()
    (given,) = inputs_of_down_proj(mlp, monkeypatch)
    assert isinstance(given, torch.Tensor), f"Marlin was handed a {type(given).__name__}"
    assert given.shape == (4, INTERMEDIATE)


def test_awq_down_proj_keeps_its_input_scale(fp4_backend, monkeypatch):
    fp4_backend((12, 1))
    mlp = nvfp4_mlp(awq=True)
    (given,) = inputs_of_down_proj(mlp, monkeypatch)
    assert isinstance(given, torch.Tensor), "pre_quant_scale is skipped for a prequantized input"


@pytest.mark.guard
@pytest.mark.parametrize(
    ("capability", "flag", "backend"),
    [
        ((12, 0), "flashinfer_cutlass", "flashinfer_cutlass"),
        ((12, 1), "auto", "flashinfer_cutlass"),
        ((10, 0), "auto", "flashinfer_cutedsl"),
        ((12, 1), "flashinfer_cudnn", "flashinfer_cudnn"),
        ((10, 0), "flashinfer_trtllm", "flashinfer_trtllm"),
    ],
)
def test_native_fp4_backends_keep_the_fusion(fp4_backend, monkeypatch, capability, flag, backend):
    assert fp4_backend(capability, flag).value == backend
    mlp = nvfp4_mlp()
    assert mlp._enable_silu_fp4_quant_fusion
    assert mlp.down_proj._accepts_prequantized_fp4
    (given,) = inputs_of_down_proj(mlp, monkeypatch)
    assert isinstance(given, tuple)


@pytest.mark.guard
def test_unquantized_down_proj_is_never_fused(fp4_backend, monkeypatch):
    fp4_backend((12, 1))
    mlp = nvfp4_mlp(exclude=("*.down_proj",))
    assert not mlp._enable_silu_fp4_quant_fusion
    (given,) = inputs_of_down_proj(mlp, monkeypatch)
    assert isinstance(given, torch.Tensor)


@pytest.mark.guard
def test_kill_switch_still_works(fp4_backend, monkeypatch):
    fp4_backend((12, 1))
    monkeypatch.setenv("SGLANG_DISABLE_SILU_FP4_QUANT_FUSION", "1")
    assert not nvfp4_mlp()._enable_silu_fp4_quant_fusion
