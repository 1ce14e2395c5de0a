"""P10: mapping `q_proj` to `qkv_proj` and the like never changes a name it did not place.

The loaders rewrote a name before asking whether the fused parameter exists, and kept the rewrite: a
tensor stored under its own name (a scale, a bias, an already fused projection) was then lost, or looked
for as `gate_gate_up_proj`. The loaders run here on a module that holds the parameters a test needs.
"""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest
import torch
from torch import nn

QWEN3_5 = (
    "qwen3_5.Qwen3_5ForCausalLM",
    "qwen3_5.Qwen3_5MoeForCausalLM",
    "qwen3_5.Qwen3_5ForConditionalGeneration",
    "qwen3_5.Qwen3_5MoeForConditionalGeneration",
)
QWEN3 = "qwen3.Qwen3ForCausalLM"
ALL = (*QWEN3_5, QWEN3)
LAYER = "model.layers.0"
# checkpoint name -> (fused parameter, shard id)
SHARED_SHARDS: dict[str, tuple[str, Any]] = {
    f"{LAYER}.self_attn.q_proj.weight": ("qkv_proj.weight", "q"),
    f"{LAYER}.self_attn.k_proj.weight": ("qkv_proj.weight", "k"),
    f"{LAYER}.self_attn.v_proj.weight": ("qkv_proj.weight", "v"),
    f"{LAYER}.mlp.gate_proj.weight": ("gate_up_proj.weight", 0),
    f"{LAYER}.mlp.up_proj.weight": ("gate_up_proj.weight", 1),
}
GDN_SHARDS: dict[str, tuple[str, Any]] = {
    f"{LAYER}.linear_attn.in_proj_qkv.weight": ("in_proj_qkvz.weight", (0, 1, 2)),
    f"{LAYER}.linear_attn.in_proj_z.weight": ("in_proj_qkvz.weight", 3),
    f"{LAYER}.linear_attn.in_proj_b.weight": ("in_proj_ba.weight", 0),
    f"{LAYER}.linear_attn.in_proj_a.weight": ("in_proj_ba.weight", 1),
}


class Loader:
    """A model class's own load_weights over chosen parameters; `calls` keeps what was loaded."""

    def __init__(self, which: str, parameters: list[str]) -> None:
        import importlib

        module, name = which.split(".")
        cls = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
        self.calls: list[tuple[str, Any]] = []
        self.model = cls.__new__(cls)
        nn.Module.__init__(self.model)
        for full in parameters:
            self._register(full)
        object.__setattr__(self.model, "config", config())
        for key, value in {
            "pp_group": types.SimpleNamespace(is_last_rank=True, is_first_rank=True),
            "pooler": None,
            "quant_config": None,
            "enable_shared_expert_fusion": False,
            "num_fused_shared_experts": 0,
        }.items():
            object.__setattr__(self.model, key, value)
        object.__setattr__(self.model._modules["model"], "end_layer", 1)

    def _register(self, full: str) -> None:
        *path, leaf = full.split(".")
        at: nn.Module = self.model
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]
        param = nn.Parameter(torch.zeros(4), requires_grad=False)

        def load(_p: Any, w: torch.Tensor, *shard: Any) -> None:
            self.calls.append((full, shard[0] if shard else None))
            param.data.copy_(w)

        param.weight_loader = load
        at.register_parameter(leaf, param)

    def load(self, *names: str) -> Any:
        return self.model.load_weights([(n, torch.arange(4.0)) for n in names])


def config() -> Any:
    c = types.SimpleNamespace(
        tie_word_embeddings=False, num_experts=2, num_hidden_layers=1, encoder_only=False, vocab_size=8
    )
    c.text_config = c
    return c


def sg(name: str, which: str) -> str:
    """The parameter a checkpoint name has in SGLang: Qwen3.5 drops the `self_attn` level."""
    return name if which == QWEN3 else name.replace(".self_attn", "")


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize(
    "own",
    [
        f"{LAYER}.mlp.gate_proj.zero_point",
        f"{LAYER}.mlp.up_proj.bias",
        f"{LAYER}.self_attn.v_proj.g_idx",
        f"{LAYER}.self_attn.q_proj.bias",
    ],
)
def test_a_tensor_stored_under_its_own_name_is_loaded(which: str, own: str) -> None:
    loader = Loader(which, [sg(own, which)])
    loader.load(own)
    assert loader.calls == [(sg(own, which), None)]


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize("fused", [f"{LAYER}.self_attn.qkv_proj.weight", f"{LAYER}.mlp.gate_up_proj.weight"])
def test_an_already_fused_projection_is_loaded_whole(which: str, fused: str) -> None:
    loader = Loader(which, [sg(fused, which)])
    loader.load(fused)
    assert loader.calls == [(sg(fused, which), None)]


@pytest.mark.parametrize("which", QWEN3_5)
@pytest.mark.parametrize("stray", ["mlp.gate_proj.zero_point", "linear_attn.in_proj_z.zero_point"])
def test_an_unknown_tensor_is_reported_under_its_own_name(
    which: str, stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{LAYER}.{stray}"
    loader = Loader(which, [f"{LAYER}.input_layernorm.weight"])
    with caplog.at_level(logging.WARNING):
        loader.load(name)
    assert f"Parameter {name} not found" in caplog.text
    assert loader.calls == []


@pytest.mark.guard
@pytest.mark.parametrize("which", ALL)
def test_matched_projections_take_the_fused_parameter(which: str) -> None:
    shards = SHARED_SHARDS | (GDN_SHARDS if which != QWEN3 else {})
    expected = []
    for name, (fused, shard) in shards.items():
        parent = sg(name, which).rsplit(".", 2)[0]
        expected.append((f"{parent}.{fused}", shard))
    loader = Loader(which, sorted({p for p, _ in expected}))
    loaded = loader.load(*shards)
    assert loader.calls == expected
    if loaded is not None:
        assert set(loaded) == {p for p, _ in expected}


@pytest.mark.guard
@pytest.mark.parametrize("which", ALL)
def test_extra_biases_are_skipped_and_plain_parameters_loaded(which: str) -> None:
    plain = f"{LAYER}.mlp.down_proj.weight"
    loader = Loader(which, [plain, f"{LAYER}.mlp.gate_up_proj.weight"])
    loader.load(f"{LAYER}.mlp.gate_proj.bias", plain)
    assert loader.calls == [(plain, None)]


@pytest.mark.guard
def test_qwen3_still_refuses_a_shard_without_a_home() -> None:
    loader = Loader(QWEN3, [f"{LAYER}.input_layernorm.weight"])
    with pytest.raises(KeyError, match="gate_up_proj"):
        loader.load(f"{LAYER}.mlp.gate_proj.weight")
