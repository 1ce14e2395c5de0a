"""P27: the log says how the target's head is held, so that a head unpacked on the way shows.

That the engine prints it is tested where an engine boots: tests/smoke/test_on_engine.py.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("engine")


def head(method: str, **tensors: torch.Tensor) -> torch.nn.Module:
    """A module that holds a head's tensors and a method of that name."""
    layer = torch.nn.Module()
    for name, value in tensors.items():
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    layer.quant_method = type(method, (), {})()
    return layer


def test_a_packed_head_is_told_with_its_bytes() -> None:
    from sglang.srt.layers.vocab_parallel_embedding import describe_lm_head

    packed = head(
        "ModelOptFp4LinearMethod",
        weight=torch.zeros(2048, 128, dtype=torch.uint8),
        weight_scale=torch.zeros(2048, 16, dtype=torch.float8_e4m3fn),
    )
    said = describe_lm_head(packed)
    assert said == f"method=ModelOptFp4LinearMethod, weight=uint8[2048x128], bytes={2048 * 128 + 2048 * 16}"


def test_a_dense_head_is_told_as_such() -> None:
    from sglang.srt.layers.vocab_parallel_embedding import describe_lm_head

    dense = head("UnquantizedEmbeddingMethod", weight=torch.zeros(2048, 256, dtype=torch.bfloat16))
    said = describe_lm_head(dense)
    assert said == f"method=UnquantizedEmbeddingMethod, weight=bfloat16[2048x256], bytes={2048 * 512}"


def test_a_rank_without_a_head_says_nothing() -> None:
    from sglang.srt.layers.vocab_parallel_embedding import describe_lm_head

    assert describe_lm_head(None) is None
    assert describe_lm_head(torch.nn.Identity()) is None
