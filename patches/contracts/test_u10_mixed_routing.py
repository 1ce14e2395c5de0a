"""U10-U13: how MIXED_PRECISION checkpoints are recognised, as the released engine already does it.

U10 a per-module NVFP4 map goes to modelopt_mixed; U11 a bare declaration to w4afp8; U12 `W4A16_NVFP4` is a
weight-only format of its own; U13 `ignore` may be null. A later base must not lose any of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as T

pytestmark = pytest.mark.guard

# What the published W4AFP8 checkpoints of DeepSeek-R1 carry, in full.
BARE = {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}}


def resolve(path: Any) -> Any:
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig(str(path), trust_remote_code=False)


@pytest.mark.parametrize("mlp", ["NVFP4", "W4A16_NVFP4"])
@pytest.mark.parametrize("place", ["config.json", "hf_quant_config.json"])
def test_u10_map_with_nvfp4_goes_to_modelopt_mixed(tiny: support.TinyModels, mlp: str, place: str) -> None:
    quant = T.mixed_quant(mlp=mlp, head=mlp)
    if place == "config.json":
        path = tiny.target(quant=quant)
    else:
        nested = {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": quant["ignore"],
            "quantized_layers": quant["quantized_layers"],
        }
        path = tiny.write(
            "t", T.target_config(), hf_quant_config={"producer": {"name": "modelopt"}, "quantization": nested}
        )
    assert resolve(path).quantization == "modelopt_mixed"


@pytest.mark.usefixtures("engine", "sm121")
def test_u10_rules_reach_the_modules(tiny: support.TinyModels) -> None:
    model, _, quant = support.build_model(support.publish_args(tiny.target(quant=T.mixed_quant())))
    methods = support.methods_of(model)
    assert quant.get_name() == "modelopt_mixed"
    assert quant.kv_cache_quant_algo == "FP8"
    assert methods["lm_head"] == "ModelOptFp4LinearMethod"
    assert methods["model.layers.0.mlp.gate_up_proj"] == "ModelOptFp4LinearMethod"
    assert methods["model.layers.0.linear_attn.out_proj"] == "ModelOptFp8LinearMethod"


@pytest.mark.parametrize("place", ["config.json", "hf_quant_config.json"])
def test_u11_bare_declaration_goes_to_w4afp8(tiny: support.TinyModels, place: str) -> None:
    if place == "config.json":
        path = tiny.target(quant={"quant_method": "modelopt", **BARE["quantization"]})
    else:
        path = tiny.write("t", T.target_config(), hf_quant_config=BARE)
    config = resolve(path)
    assert config.quantization == "w4afp8"
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.weight_utils import get_quant_config

    assert get_quant_config(config, LoadConfig(), {}).get_name() == "w4afp8"


@pytest.mark.usefixtures("engine", "sm121")
@pytest.mark.parametrize("text_only", [False, True])
def test_u12_w4a16_nvfp4_is_weight_only(tiny: support.TinyModels, text_only: bool) -> None:
    quant = T.mixed_quant(mlp="W4A16_NVFP4", head="W4A16_NVFP4")
    model, _, _ = support.build_model(support.publish_args(tiny.target(quant=quant, text_only=text_only)))
    methods = support.methods_of(model)
    assert methods["lm_head"] == "ModelOptNvFp4A16LinearMethod"
    assert {m for name, m in methods.items() if name.endswith("mlp.down_proj")} == {
        "ModelOptNvFp4A16LinearMethod"
    }


@pytest.mark.usefixtures("engine", "sm121")
def test_u12_uniform_w4a16_nvfp4(tiny: support.TinyModels) -> None:
    quant = {**T.flat_nvfp4(ignore=["mtp*", "model.visual*"]), "quant_algo": "W4A16_NVFP4"}
    model, config, _ = support.build_model(support.publish_args(tiny.target(quant=quant)))
    assert config.quantization == "modelopt_fp4"
    assert support.methods_of(model)["model.layers.0.mlp.down_proj"] == "ModelOptNvFp4A16LinearMethod"


@pytest.mark.parametrize("ignore", ["null", "absent", "empty"])
def test_u13_ignore_may_be_null(sm121: None, ignore: str) -> None:
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptMixedPrecisionConfig

    quant = T.mixed_quant()
    quant["ignore"] = {"null": None, "empty": []}.get(ignore)
    if ignore == "absent":
        del quant["ignore"]
    config = ModelOptMixedPrecisionConfig.from_config({**quant, "packed_modules_mapping": {}})
    assert config.exclude_modules == []
    assert not config.is_layer_excluded("lm_head")
