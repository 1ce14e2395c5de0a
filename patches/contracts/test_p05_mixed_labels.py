"""P05: MIXED_PRECISION labels are taken by name, and a label nobody serves is refused by name.

What W4AFP8 checkpoints declare, found first: the published ones (DeepSeek-R1-W4AFP8 of two makers)
carry a bare `{"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null}` and no per-module map, as
sgl-project/sglang#28099 says too. So a map decides for `modelopt_mixed`, unless it labels INT4 weights
with FP8 activations (ModelOpt's `W4A8_AWQ`), which keeps the old route.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as T

LAYER = "model.layers.0.mlp.down_proj"


def route(labels: list[str]) -> str:
    """Quantization method that a MIXED_PRECISION checkpoint with these per-module labels gets."""
    from sglang.srt.configs.model_config import ModelConfig

    layers = {f"{LAYER}{i}": {"quant_algo": label, "group_size": 16} for i, label in enumerate(labels)}
    config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    return ModelConfig.__new__(ModelConfig)._parse_modelopt_quant_config({"quantization": config})[
        "quant_method"
    ]


@pytest.mark.parametrize(
    "labels",
    [
        ["NVFP4_AWQ"],
        ["NVFP4_AWQ", "FP8"],
        ["NVFP4_SVD", "FP8"],
        ["W4A8_NVFP4_FP8", "FP8"],
        ["FP8", "MXFP8"],
        ["FP8", "fp8_pb_wo"],
        ["FP8"],
        ["w4a4_nvfp4", "FP8"],
        ["NVFP4_AWQ", "W4A8_AWQ"],
    ],
    ids="+".join,
)
def test_any_map_is_served_by_modelopt_mixed(labels: list[str]) -> None:
    assert route(labels) == "modelopt_mixed"


@pytest.mark.guard
@pytest.mark.parametrize(
    ("labels", "method"),
    [
        (["NVFP4"], "modelopt_mixed"),
        (["nvfp4", "FP8"], "modelopt_mixed"),
        (["W4A16_NVFP4", "FP8"], "modelopt_mixed"),
        (["NVFP4", "W4A8_AWQ"], "modelopt_mixed"),
        (["W4A8_AWQ", "FP8"], "w4afp8"),
        (["w4a8_awq"], "w4afp8"),
        ([], "w4afp8"),
    ],
)
def test_routes_that_stay(labels: list[str], method: str) -> None:
    assert route(labels) == method


# --- one label, one method -----------------------------------------------------------------------


def mixed(layers: dict[str, dict[str, Any]], **more: Any) -> Any:
    """A mixed configuration with these rules."""
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptMixedPrecisionConfig

    packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    return ModelOptMixedPrecisionConfig.from_config(
        {"quant_algo": "MIXED_PRECISION", "ignore": [], "packed_modules_mapping": packed}
        | {"quantized_layers": layers}
        | more
    )


def rule(label: str) -> dict[str, Any]:
    return {"quant_algo": label, "group_size": 128 if label.upper().startswith("FP8_") else 16}


def linear() -> Any:
    """A linear layer as far as a quantization config looks at it."""
    import torch
    from sglang.srt.layers.linear import LinearBase

    layer = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(layer)
    return layer


def method_for(label: str, prefix: str = "m.x") -> Any:
    config = mixed({"a.anchor": rule("NVFP4"), "m.x": rule(label)})
    return config.get_quant_method(linear(), prefix)


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("W4A4_NVFP4", "ModelOptFp4LinearMethod"),
        ("w4a4_nvfp4", "ModelOptFp4LinearMethod"),
        ("MIXED_W4A16_NVFP4", "ModelOptNvFp4A16LinearMethod"),
    ],
)
def test_whatever_ends_in_nvfp4_is_nvfp4(sm121: None, label: str, method: str) -> None:
    assert type(method_for(label)).__name__ == method


@pytest.mark.parametrize("label", ["NVFP4_AWQ", "nvfp4_awq"])
def test_awq_label_loads_and_applies_its_input_scale(sm121: None, label: str) -> None:
    method = method_for(label)
    assert type(method).__name__ == "ModelOptFp4LinearMethod"
    assert method.quant_config.is_awq
    layer = linear()
    import torch

    method.create_weights(layer, 256, [128], 256, 128, torch.bfloat16, weight_loader=None)
    assert layer.pre_quant_scale.shape == (256,)
    # The plain NVFP4 modules of the same checkpoint have none.
    plain = mixed({"a.anchor": rule("NVFP4_AWQ"), "m.x": rule("NVFP4")}).get_quant_method(linear(), "m.x")
    assert not plain.quant_config.is_awq


@pytest.mark.guard
@pytest.mark.parametrize(
    ("label", "method", "block"),
    [
        ("NVFP4", "ModelOptFp4LinearMethod", None),
        ("W4A16_NVFP4", "ModelOptNvFp4A16LinearMethod", None),
        ("FP8", "ModelOptFp8LinearMethod", None),
        ("MXFP8", "Fp8LinearMethod", [1, 32]),
        ("FP8_PB_WO", "Fp8LinearMethod", [128, 128]),
        ("fp8_pb_wo", "Fp8LinearMethod", [128, 128]),
        ("FP8_BLOCK_SCALES", "Fp8LinearMethod", [128, 128]),
    ],
)
def test_labels_that_were_known(sm121: None, label: str, method: str, block: list[int] | None) -> None:
    found = method_for(label)
    assert type(found).__name__ == method
    assert getattr(found.quant_config, "weight_block_size", None) == block


@pytest.mark.guard
def test_module_without_a_rule_is_unquantized(sm121: None) -> None:
    assert type(method_for("NVFP4", "some.other")).__name__ == "UnquantizedLinearMethod"


@pytest.mark.parametrize(
    "label",
    ["NVFP4_SVD", "W4A8_NVFP4_FP8", "FP8_PER_CHANNEL_PER_TOKEN", "fp8_pb_real", "W4A16_AWQ", "W4A8_AWQ"],
)
def test_unknown_label_is_refused_with_module_and_label(sm121: None, label: str) -> None:
    with pytest.raises(ValueError, match=rf"\bm\.x as {label.upper()}\b"):
        method_for(label)


@pytest.mark.usefixtures("engine", "sm121")
def test_building_a_model_names_the_module_and_the_label(tiny: support.TinyModels) -> None:
    """Today the linear layer is built unquantized and dies in a loader that does not name the label."""
    args = support.publish_args(tiny.target(quant=T.mixed_quant(linear="FP8_PER_CHANNEL_PER_TOKEN")))
    with pytest.raises(ValueError, match=r"linear_attn.* as FP8_PER_CHANNEL_PER_TOKEN"):
        support.build_model(args)


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_unknown_label_on_an_excluded_module_is_nobodys_business(tiny: support.TinyModels) -> None:
    quant = T.mixed_quant()
    quant["quantized_layers"]["model.visual.blocks.0.attn.qkv"] = rule("W4A16_AWQ")
    args = support.publish_args(tiny.target(quant=quant))
    _, config, _ = support.build_model(args)
    assert config.quantization == "modelopt_mixed"


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_default_mixed_checkpoint_builds_the_same_methods(tiny: support.TinyModels) -> None:
    model, _, _ = support.build_model(support.publish_args(tiny.target(quant=T.mixed_quant())))
    methods = support.methods_of(model)
    assert methods["lm_head"] == "ModelOptFp4LinearMethod"
    mlp = [m for name, m in methods.items() if ".mlp." in name and "visual" not in name]
    assert set(mlp) == {"ModelOptFp4LinearMethod"}
    assert len(mlp) == 8
    fp8 = [name for name, method in methods.items() if method == "ModelOptFp8LinearMethod"]
    assert len(fp8) == 3 * 2 + 2, fp8  # three GDN layers (qkv and z fused, out), one attention layer


# --- the head by its two names -------------------------------------------------------------------

HEAD_NAMES = ("lm_head", "language_model.lm_head", "model.lm_head", "model.language_model.lm_head")


@pytest.mark.parametrize("key", HEAD_NAMES[1:])
def test_head_rule_is_found_by_any_of_its_names(key: str) -> None:
    config = mixed({key: rule("NVFP4")})
    assert {name: config.resolve_quant_algo(name) for name in HEAD_NAMES} == dict.fromkeys(
        HEAD_NAMES, "NVFP4"
    )


@pytest.mark.guard
def test_head_rule_by_its_plain_name() -> None:
    config = mixed({"lm_head": rule("NVFP4")})
    assert config.resolve_quant_algo("lm_head") == "NVFP4"
    assert config.resolve_quant_algo("language_model.lm_head") == "NVFP4"
    assert config.resolve_quant_algo("lm_head_norm") is None
    assert mixed({"m.x": rule("NVFP4")}).resolve_quant_algo("lm_head") is None


@pytest.mark.parametrize("name", HEAD_NAMES[1:])
@pytest.mark.usefixtures("engine", "sm121")
def test_excluded_head_by_its_long_name_is_unquantized(tiny: support.TinyModels, name: str) -> None:
    quant = T.uniform_nvfp4(ignore=["mtp*", "model.visual*", name])
    model, _, _ = support.build_model(support.publish_args(tiny.target(quant=quant)))
    methods = support.methods_of(model)
    assert methods["lm_head"] == "UnquantizedLinearMethod"
    assert methods["model.layers.0.mlp.down_proj"] == "ModelOptFp4LinearMethod"


@pytest.mark.guard
@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("lm_head", True),
        ("*lm_head*", True),
        ("lm_head*", True),
        ("model.visual*", False),
        ("model.layers.0*", False),
    ],
)
def test_exclusions_that_were_known(pattern: str, excluded: bool) -> None:
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config

    config = ModelOptFp4Config.from_config(
        {"quant_algo": "NVFP4", "group_size": 16, "ignore": [pattern], "packed_modules_mapping": {}}
    )
    assert config.is_layer_excluded("lm_head") is excluded


# --- kv_cache_scheme -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "algo"), [("FP8", "FP8"), ("fp8", "FP8"), ("NVFP4", "NVFP4"), ("INT8", "auto")]
)
def test_kv_cache_scheme_by_name(scheme: str, algo: str) -> None:
    assert mixed({"m.x": rule("NVFP4")}, kv_cache_scheme=scheme).kv_cache_quant_algo == algo


@pytest.mark.guard
@pytest.mark.parametrize(
    ("more", "algo"),
    [
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8}}, "FP8"),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 4}}, "NVFP4"),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, "auto"),
        ({"kv_cache_scheme": None}, None),
        ({"kv_cache_quant_algo": "FP8"}, "FP8"),
        ({}, None),
    ],
)
def test_kv_cache_schemes_that_were_known(more: dict[str, Any], algo: str | None) -> None:
    assert mixed({"m.x": rule("NVFP4")}, **copy.deepcopy(more)).kv_cache_quant_algo == algo
