"""ModelOpt NVFP4, W4A16_NVFP4, FP8 and compressed-tensors WNA16 linears (and heads) on CPU.

A layer keeps its packed tensors in the dtypes a GPU would leave there, with the attributes that the engine looks for,
so that everything which asks "is this head quantized" takes the same branch as on a GPU. Beside them lies the float32
weight, dequantized once at load. Inputs of W4A4 and FP8 layers are rounded with the checkpoint's input_scale, as the
GPU kernels do; sums are float32. Loading, name mapping and excludes are SGLang's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn import Parameter

from . import hooks

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
E2M1_MAX, E4M3_MAX, GROUP = 6.0, 448.0, 16
DENSE = "_cpu_ref_weight"


# ------------------------------------------------------------------------------------------ formats
def per_row(scale: torch.Tensor, widths: list[int]) -> torch.Tensor:
    """One scale per fused part -> [] or [N, 1], so that each part keeps its own."""
    s = scale.detach().float().reshape(-1)
    if s.numel() == 1:
        return s.reshape(())
    return torch.cat([x.repeat(w) for x, w in zip(s, widths, strict=True)]).unsqueeze(1)


def dequantize_nvfp4(
    packed: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor
) -> torch.Tensor:
    """uint8 [N, K/2], e4m3 [N, K/16], [] or [N, 1] -> float32 [N, K]; the low nibble is the even element."""
    n, half = packed.shape
    codes = torch.stack([packed & 15, packed >> 4], -1).long()
    blocks = E2M1[codes].view(n, -1, GROUP) * block_scale.float().unsqueeze(-1)
    return blocks.view(n, half * 2) * global_scale


def round_nvfp4(x: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """Round activations to NVFP4 with a given global scale and back, float32 [..., K]; ties to the even code."""
    blocks = x.float().reshape(-1, GROUP)
    scale = blocks.abs().amax(-1, keepdim=True) / (E2M1_MAX * global_scale)
    scale = scale.clamp(2.0**-9, E4M3_MAX).to(torch.float8_e4m3fn).float() * global_scale
    mag = (blocks / scale).abs().clamp(max=E2M1_MAX)
    low = torch.bucketize(mag, MIDPOINTS)  # a tie goes to the lower code ...
    high = torch.bucketize(mag, MIDPOINTS, right=True)
    code = torch.where((low != high) & (low % 2 == 1), high, low)  # ... unless that one is odd
    return (E2M1[code] * blocks.sign() * scale).reshape(x.shape)


def round_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale


def dequantize_wna16(
    packed: torch.Tensor, scale: torch.Tensor, bits: int, k: int, zero_point: torch.Tensor | None = None
) -> torch.Tensor:
    """compressed-tensors pack-quantized: int32 [N, K * bits / 32], scale [N, groups] -> float32 [N, K].

    Symmetric codes are stored with an offset of 2 ** (bits - 1).
    """
    if zero_point is not None:
        raise NotImplementedError("cpu reference: asymmetric WNA16")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    values = codes.reshape(packed.shape[0], -1)[:, :k].float() - 2 ** (bits - 1)
    return values * scale.float().repeat_interleave(k // scale.shape[1], 1)


# ------------------------------------------------------------------------------------------ layers
def _keep(layer: torch.nn.Module, dense: torch.Tensor, what: str) -> None:
    if not torch.isfinite(dense).all():
        raise ValueError(f"cpu reference: a {what} weight is not finite; a scale was not loaded")
    setattr(layer, DENSE, dense)


def _matmul(
    layer: torch.nn.Module, x: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None
) -> torch.Tensor:
    return F.linear(x.float(), getattr(layer, DENSE), None if bias is None else bias.float()).to(dtype)


def _need_half(x: torch.Tensor, op: str) -> None:
    # The CUDA quantize op refuses float32 too: a missing cast before a packed head must show here as well.
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"{op}: unsupported input dtype {x.dtype} (want bfloat16 or float16)")


def _fixed(layer: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    setattr(layer, name, Parameter(value, requires_grad=False))


def _load_fp4(_self: Any, layer: torch.nn.Module) -> None:
    dense = dequantize_nvfp4(
        layer.weight.data, layer.weight_scale.data, per_row(layer.weight_scale_2, layer.logical_widths)
    )
    _keep(layer, dense, "NVFP4")
    input_scale = layer.input_scale.detach().float().max()
    _fixed(layer, "alpha", input_scale * layer.weight_scale_2.detach().float().max())
    _fixed(layer, "input_scale_inv", 1 / input_scale)
    _fixed(layer, "weight_scale_interleaved", layer.weight_scale.data)  # linear here, swizzled on a GPU
    layer.output_size_per_partition = layer.weight.shape[0]
    layer.weights_padding_cols = 0


def _apply_fp4(
    _self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    _need_half(x, "fp4_quantize")
    dtype = x.dtype
    if hasattr(layer, "pre_quant_scale"):
        x = x * layer.pre_quant_scale.to(dtype)
    return _matmul(layer, round_nvfp4(x, 1 / layer.input_scale_inv), dtype, bias)


def _load_fp4_a16(_self: Any, layer: torch.nn.Module) -> None:
    dense = dequantize_nvfp4(
        layer.weight.data, layer.weight_scale.data, per_row(layer.weight_scale_2, layer.logical_widths)
    )
    _keep(layer, dense, "W4A16_NVFP4")
    if hasattr(layer, "input_scale"):
        del layer.input_scale
    _fixed(layer, "weight_global_scale", layer.weight_scale_2.detach().float().max())
    del layer.weight_scale_2
    # Marlin leaves an int32 tensor and a workspace; here the same bytes, not repacked.
    _fixed(layer, "weight", layer.weight.data.contiguous().view(torch.int32))
    layer.workspace = torch.zeros(1, dtype=torch.int32)


def _apply_fp4_a16(
    _self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    _need_half(x, "fp4_marlin_gemm")
    return _matmul(layer, x, x.dtype, bias)


def _load_fp8(_self: Any, layer: torch.nn.Module) -> None:
    _keep(layer, layer.weight.data.float() * per_row(layer.weight_scale, layer.logical_widths), "FP8")
    if getattr(layer, "input_scale", None) is not None:
        scale = layer.input_scale.detach().float().max()
        if not torch.isfinite(scale) or scale <= 0:
            raise ValueError(f"cpu reference: FP8 input_scale is {float(scale)}; the checkpoint has none")
        _fixed(layer, "input_scale", scale)
    _fixed(layer, "weight", layer.weight.data.t())
    layer.use_flashinfer_bmm = False


def _apply_fp8(
    _self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    scale = getattr(layer, "input_scale", None)
    return _matmul(layer, x if scale is None else round_fp8(x, scale), x.dtype, bias)


def _load_wna16(self: Any, layer: torch.nn.Module) -> None:
    k = self.kernel_config.partition_weight_shape[0]
    zero = getattr(layer, "weight_zero_point", None)
    bits = 32 // self.pack_factor
    _keep(layer, dequantize_wna16(layer.weight_packed.data, layer.weight_scale.data, bits, k, zero), "WNA16")


def _apply_wna16(
    _self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    _need_half(x, "gptq_marlin_gemm")
    return _matmul(layer, x, x.dtype, bias)


def _scheme_supported(self: Any, min_capability: int, error: bool = True) -> bool:
    """There is no compute capability to ask for; what has no reference fails when it is called."""
    del self, min_capability, error
    return True


def install() -> None:
    modelopt = "sglang.srt.layers.quantization.modelopt_quant"
    for name, load, apply in (
        ("ModelOptFp4LinearMethod", _load_fp4, _apply_fp4),
        ("ModelOptNvFp4A16LinearMethod", _load_fp4_a16, _apply_fp4_a16),
        ("ModelOptFp8LinearMethod", _load_fp8, _apply_fp8),
    ):
        hooks.put(f"{modelopt}.{name}", "process_weights_after_loading", load)
        hooks.put(f"{modelopt}.{name}", "apply", apply)
    ct = "sglang.srt.layers.quantization.compressed_tensors"
    wna16 = f"{ct}.schemes.compressed_tensors_wNa16.CompressedTensorsWNA16"
    hooks.put(wna16, "process_weights_after_loading", _load_wna16)
    hooks.put(wna16, "apply_weights", _apply_wna16)
    hooks.put(
        f"{ct}.compressed_tensors.CompressedTensorsConfig", "_check_scheme_supported", _scheme_supported
    )
