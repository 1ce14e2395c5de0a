"""Packed LM heads for the head contracts: every layout a checkpoint can leave on the target's head.

No GPU kernel runs here. A head keeps the attributes its real quantization method leaves on the layer,
and its `apply` multiplies by the matrix those packed values stand for. Padded rows come out as a large
constant, so that a missing mask or crop shows up as a wrong token and not by chance as a right one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

PADDING_LOGIT = 3.0e4  # finite in bf16 and fp16, above every logit the tests make

# layout -> (class name of the method, tensor names and dtypes it leaves on the layer)
LAYOUTS: dict[str, tuple[str, dict[str, torch.dtype]]] = {
    "nvfp4": (
        "ModelOptFp4LinearMethod",
        {
            "weight": torch.uint8,
            "weight_scale_interleaved": torch.float8_e4m3fn,
            "alpha": torch.float32,
            "input_scale_inv": torch.float32,
        },
    ),
    "nvfp4_marlin": (
        "ModelOptFp4LinearMethod",
        {
            "weight": torch.int32,
            "weight_scale": torch.float8_e4m3fn,
            "weight_global_scale": torch.float32,
            "workspace": torch.int32,
        },
    ),
    "w4a16_marlin": (
        "ModelOptNvFp4A16LinearMethod",
        {
            "weight": torch.int32,
            "weight_scale": torch.float8_e4m3fn,
            "weight_global_scale": torch.float32,
            "workspace": torch.int32,
        },
    ),
    "fp8": (
        "ModelOptFp8LinearMethod",
        {"weight": torch.float8_e4m3fn, "weight_scale": torch.float32, "input_scale": torch.float32},
    ),
    "fp8_marlin": (
        "ModelOptFp8LinearMethod",
        {"weight": torch.int32, "weight_scale": torch.bfloat16, "workspace": torch.int32},
    ),
    "ct_fp8": (
        "CompressedTensorsLinearMethod",
        {"weight": torch.float8_e4m3fn, "weight_scale": torch.float32},
    ),
    "ct_nvfp4": (
        "CompressedTensorsLinearMethod",
        {
            "weight_packed": torch.uint8,
            "weight_scale": torch.float8_e4m3fn,
            "weight_global_scale": torch.float32,
        },
    ),
    "gguf": ("GGUFEmbeddingMethod", {"qweight": torch.uint8}),
}
WITHOUT_WEIGHT = ("ct_nvfp4", "gguf")
NEWLY_ADMITTED = (*WITHOUT_WEIGHT, "fp8_marlin")
ADMITTED_BEFORE = tuple(name for name in LAYOUTS if name not in NEWLY_ADMITTED)


class PackedMethod:
    """Stands for a quantization method: multiplies by `rows` and pads, for 16-bit activations only."""

    quant_mode = "w4a4"

    def __init__(self, rows: torch.Tensor, padded: int) -> None:
        self.rows = rows
        self.padded = padded
        self.inputs: list[torch.Tensor] = []

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        self.inputs.append(x)
        if x.dtype not in (torch.bfloat16, torch.float16):
            raise TypeError(f"packed head kernel: unsupported activation dtype {x.dtype}")
        assert bias is None
        logits = (x.float() @ self.rows.float().T).to(x.dtype)
        tail = logits.new_full((logits.shape[0], self.padded), PADDING_LOGIT)
        return torch.cat([logits, tail], dim=-1)


def packed_head(
    layout: str,
    rows: torch.Tensor,
    *,
    padded: int = 0,
    start: int = 0,
    org_vocab_size: int | None = None,
    tp_size: int = 1,
    **extra: Any,
) -> SimpleNamespace:
    """A head of `layout` whose local shard holds `rows` [num_org, hidden] and `padded` rows after them.

    `start` is the global id of the first row; `org_vocab_size` the whole vocabulary (default: the shard).
    """
    name, tensors = LAYOUTS[layout]
    num_org, hidden = rows.shape
    method = type(name, (PackedMethod,), {})(rows, padded)
    shapes = {"weight": (num_org + padded, hidden // 2), "weight_packed": (num_org + padded, hidden // 2)}
    held = {key: torch.zeros(shapes.get(key, (1,)), dtype=dtype) for key, dtype in tensors.items()}
    return SimpleNamespace(
        **held,
        quant_method=method,
        input_size_per_partition=hidden,
        output_size_per_partition=num_org + padded,
        num_embeddings_per_partition=num_org + padded,
        org_vocab_size=num_org if org_vocab_size is None else org_vocab_size,
        tp_size=tp_size,
        shard_indices=SimpleNamespace(
            num_org_elements=num_org,
            num_org_elements_padded=num_org + padded,
            num_added_elements=0,
            org_vocab_start_index=start,
            org_vocab_end_index=start + num_org,
            added_vocab_start_index=num_org,
        ),
        **extra,
    )


def dense_head(rows: torch.Tensor, *, padded: int = 0) -> SimpleNamespace:
    """A BF16/FP32 head: the rows themselves, padding rows zero, an unquantized method."""
    method = type("UnquantizedEmbeddingMethod", (PackedMethod,), {})(rows, padded)
    weight = torch.cat([rows, rows.new_zeros(padded, rows.shape[1])])
    shard = SimpleNamespace(
        num_org_elements=rows.shape[0],
        num_org_elements_padded=weight.shape[0],
        num_added_elements=0,
        org_vocab_start_index=0,
        added_vocab_start_index=rows.shape[0],
    )
    return SimpleNamespace(
        weight=weight, quant_method=method, org_vocab_size=rows.shape[0], tp_size=1, shard_indices=shard
    )


def rows_of(vocab: int, hidden: int, seed: int = 0) -> torch.Tensor:
    """Rows whose products with `hidden_of` are exact in bf16's accumulator: multiples of 0.5, small."""
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(-6, 7, (vocab, hidden), generator=gen).float() / 2


def hidden_of(batch: int, hidden: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return (torch.randint(-4, 5, (batch, hidden), generator=gen) / 4).to(dtype)


def draft_model(lm_head: Any, top_k: int) -> SimpleNamespace:
    """What `DFlash2DraftModel.compute_candidates` reads of its model."""
    return SimpleNamespace(
        lm_head=lm_head,
        candidate_selector=SimpleNamespace(top_k=top_k),
        _transform_unary_logits=lambda logits: logits.float(),
    )


def dflash_worker(lm_head: Any, *, selector: Any = None, block_size: int = 4) -> SimpleNamespace:
    """What `DFlashWorkerV2._maybe_build_draft_sampler` and the greedy head read of the worker."""
    return SimpleNamespace(
        block_size=block_size,
        selector=selector,
        lilicorr=None,
        device="cpu",
        draft_model=SimpleNamespace(lm_head=None),
        _is_domino=False,
        _target_tp_rank=0,
        _selector_sampling_enabled=True,
        _target_worker=SimpleNamespace(model_runner=SimpleNamespace(model=SimpleNamespace(lm_head=lm_head))),
    )
