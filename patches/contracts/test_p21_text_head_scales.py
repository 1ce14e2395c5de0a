"""P21: the text-only Qwen3.5 class loads every tensor of a quantized lm_head, not its weight alone.

A dropped scale stays uninitialised memory; the first logits are then NaN or noise.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from patches.contracts import support
from patches.contracts import tiny_models as T

HEADS = {"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4_a16", "FP8": "fp8"}


def text_model(tiny: Any, head: str | None, **config: Any) -> Any:
    """Qwen3_5ForCausalLM built by SGLang from a MIXED_PRECISION checkpoint with this head label."""
    path = tiny.write("target", {**T.target_config(T.mixed_quant(head=head), text_only=True), **config})
    model, _, _ = support.build_model(support.publish_args(path))
    assert type(model).__module__.endswith("qwen3_5_text")
    return model


def head_tensors(fmt: str) -> dict[str, torch.Tensor]:
    return {f"lm_head.{s}": t for s, t in T.packed_linear(fmt, T.VOCAB, T.HIDDEN).items()}


@pytest.mark.usefixtures("engine", "sm121")
@pytest.mark.parametrize("label", HEADS)
def test_every_tensor_of_a_quantized_head_is_loaded(tiny: Any, label: str) -> None:
    tensors = head_tensors(HEADS[label])
    loaded = support.load_noting(text_model(tiny, label), tensors)
    # The body gets no tensors here, and W4A16 keeps an input_scale slot that it never uses.
    assert not loaded.unread, "dropped without a word"
    assert not set(loaded.unset) & set(tensors)
    params = dict(loaded.model.named_parameters())
    for name, want in tensors.items():
        got = params[name].data[: T.VOCAB] if want.ndim else params[name].data.reshape(-1)[0]
        assert torch.equal(got.float(), want.float()), name


@pytest.mark.usefixtures("engine", "sm121")
def test_a_head_tensor_without_a_home_is_named(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = text_model(tiny, "W4A16_NVFP4")
    with caplog.at_level(logging.WARNING):
        model.load_weights([("lm_head.pre_quant_scale", torch.ones(T.HIDDEN))])
    assert "lm_head.pre_quant_scale" in caplog.text


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_a_dense_head_loads_as_before(tiny: Any) -> None:
    model = text_model(tiny, None)
    weight = torch.randn(T.VOCAB, T.HIDDEN).to(torch.bfloat16)
    names = model.load_weights([("lm_head.weight", weight)])
    assert "lm_head.weight" in names
    assert torch.equal(model.lm_head.weight.data[: T.VOCAB], weight)


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_a_tied_head_ignores_the_checkpoints_head(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = text_model(tiny, None, tie_word_embeddings=True)
    before = model.lm_head.weight.data.clone()
    with caplog.at_level(logging.WARNING):
        model.load_weights(list(head_tensors("bf16").items()))
    assert torch.equal(model.lm_head.weight.data.view(torch.uint8), before.view(torch.uint8))
    assert "lm_head" not in caplog.text
