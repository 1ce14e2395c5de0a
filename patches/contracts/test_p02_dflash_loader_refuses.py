"""P02: the DFlash loader refuses a checkpoint that does not match the model, and names the tensors.

A draft running on uninitialised memory still serves, since the target verifies every token: the only
symptom is an acceptance length near 1. So every parameter is written or named, and a packed tensor that
no parameter takes is an error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from patches.contracts import support
from patches.contracts import tiny_models as T

pytestmark = pytest.mark.usefixtures("engine", "sm121")


def build(tiny: Any, kind: str = "dflash2", quant: Any = None) -> Any:
    """The SGLang class of a tiny draft, built by the engine's own path; weights uninitialised."""
    target, draft = tiny.target(), tiny.draft(kind=kind, quant=quant)
    args = support.publish_args(
        target,
        speculative_algorithm="DSPARK" if kind == "dspark" else "DFLASH",
        speculative_draft_model_path=str(draft),
    )
    return support.build_model(args, draft_path=draft)[0]


def fed(model: Any, tensors: dict[str, Any], **extra: Any) -> support.Loaded:
    """Load all at once, as the engine does at start."""
    return support.load_noting(model, {**tensors, **extra}, one_by_one=False)


@pytest.mark.parametrize(
    ("kind", "lost", "named"),
    [
        ("dflash2", "fc.weight", "fc.weight"),
        ("dflash", "fc.weight", "fc.weight"),
        ("dflash2", "hidden_norm.weight", "hidden_norm.weight"),
        ("dflash2", "layers.1.mlp.down_proj.weight", "layers.1.mlp.down_proj.weight"),
        ("dflash2", "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.qkv_proj.weight (shard v)"),
        ("dflash2", "layers.1.mlp.up_proj.weight", "layers.1.mlp.gate_up_proj.weight (shard 1)"),
        ("dflash2", "layers.0.mlp_conv.base_kernel", "layers.0.mlp_conv.base_kernel"),
        ("dflash2", "candidate_selector.successor_codebook", "candidate_selector.successor_codebook"),
    ],
)
def test_a_parameter_without_a_tensor_is_named(tiny: Any, kind: str, lost: str, named: str) -> None:
    tensors = T.draft_tensors("bf16", kind=kind)
    del tensors[lost]
    with pytest.raises(ValueError, match="The draft checkpoint does not match") as e:
        fed(build(tiny, kind), tensors)
    assert named in str(e.value)
    assert "1 parameters are not in the checkpoint" in str(e.value)


@pytest.mark.parametrize("fmt", ["ct4", "fp8"])
def test_quantized_tensors_of_a_dense_layer_are_refused(tiny: Any, fmt: str) -> None:
    """The shape of #39087: the config says nothing of quantization, `fc` comes packed."""
    tensors = T.draft_tensors("bf16")
    del tensors["fc.weight"]
    packed = {f"fc.{s}": t for s, t in T.packed_linear(fmt, T.HIDDEN, 2 * T.HIDDEN).items()}
    with pytest.raises(ValueError, match="The draft checkpoint does not match") as e:
        fed(build(tiny), {**tensors, **packed})
    unknown = [n for n in packed if n != "fc.weight"]
    assert all(n in str(e.value) for n in unknown)
    assert f"{len(unknown)} quantized tensors have no parameter" in str(e.value)
    assert ("fc.weight'" in str(e.value)) == ("fc.weight" not in packed)


def test_a_shard_of_a_scale_is_missed_too(tiny: Any) -> None:
    """A fused layer takes the maximum over its shards: one default among them spoils it."""
    tensors = T.draft_tensors("nvfp4", omit=("layers.0.self_attn.k_proj.input_scale",))
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.qkv_proj\.input_scale \(shard k\)"):
        fed(build(tiny, quant=T.flat_nvfp4()), tensors)


def test_an_fp8_layer_without_its_input_scale_is_named(tiny: Any) -> None:
    tensors = T.draft_tensors("fp8", omit=("o_proj.input_scale",))
    quant = T.modelopt_fp8(ignore=("fc", "*kernel_projection", "*hidden_projection"))
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.o_proj\.input_scale"):
        fed(build(tiny, quant=quant), tensors)


@pytest.mark.guard
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_complete_bf16_draft_loads(tiny: Any, kind: str) -> None:
    loaded = fed(build(tiny, kind), T.draft_tensors("bf16", kind=kind))
    assert not loaded.unset
    assert not loaded.partial


@pytest.mark.guard
@pytest.mark.parametrize(
    "extra",
    [
        "layers.0.self_attn.rotary_emb.inv_freq",
        "layers.0.self_attn.rotary_emb.cos_cached",
        "embed_tokens.weight",
        "lm_head.weight_scale",
        "model.lm_head.weight_packed",
        "layers.0.self_attn.k_proj.k_scale",
        "some_buffer",
    ],
)
def test_what_the_draft_has_no_use_for_is_still_ignored(tiny: Any, extra: str) -> None:
    loaded = fed(build(tiny), T.draft_tensors("bf16"), **{extra: torch.ones(4)})
    assert not loaded.unset


@pytest.mark.guard
def test_nvfp4_layers_may_omit_their_input_scale(tiny: Any) -> None:
    fed(build(tiny, quant=T.flat_nvfp4()), T.draft_tensors("nvfp4", omit=("input_scale",)))


@pytest.mark.guard
def test_later_updates_may_come_in_parts(tiny: Any) -> None:
    model, tensors = build(tiny), T.draft_tensors("bf16")
    fed(model, tensors)
    new = torch.full_like(tensors["norm.weight"], 3.0)
    model.load_weights([("norm.weight", new)])
    assert torch.equal(model.norm.weight.data, new)


@pytest.mark.guard
def test_updates_after_a_dummy_load_may_come_in_parts(tiny: Any) -> None:
    from sglang.srt.model_loader.loader import post_load_weights

    model, weight = build(tiny), torch.full((T.HIDDEN,), 3.0, dtype=torch.bfloat16)
    post_load_weights(model)  # what --load-format dummy does in place of load_weights
    model.load_weights([("norm.weight", weight)])
    assert torch.equal(model.norm.weight.data, weight)


def dspark_tensors(model: Any) -> dict[str, Any]:
    """The backbone's tensors and those of the heads that DSpark loads by itself."""
    heads = {
        n: torch.randn(p.shape).to(p.dtype)
        for n, p in model.named_parameters()
        if n.startswith(("markov_head.", "confidence_head."))
    }
    assert heads
    return {**T.draft_tensors("bf16", kind="dspark"), **heads}


@pytest.mark.guard
def test_a_dspark_draft_loads_as_before(tiny: Any) -> None:
    model = build(tiny, "dspark")
    loaded = fed(model, dspark_tensors(model))
    assert not loaded.unset


def test_a_dspark_backbone_is_held_to_the_same(tiny: Any) -> None:
    model = build(tiny, "dspark")
    tensors = dspark_tensors(model)
    del tensors["fc.weight"]
    with pytest.raises(ValueError, match=r"not in the checkpoint: \['fc\.weight'\]"):
        fed(model, tensors)
