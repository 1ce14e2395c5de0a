"""Dense layers from tensor headers and from the table; both must tell the same of one layer map."""

from __future__ import annotations

from launch.gemms import Gemm, from_table, from_tensors
from launch.planfacts import table
from launch.quantmap import Tensor


def layer_map() -> dict[str, Tensor]:
    """Tensor headers of a Qwen3.8-27B (facts 2.1): 48 linear-attention layers, 16 full ones, packed MLP and head."""
    out = {
        "lm_head.weight": Tensor("U8", (248320, 2560)),
        "model.language_model.embed_tokens.weight": Tensor("BF16", (248320, 5120)),
    }
    for i in range(64):
        p = f"model.language_model.layers.{i}"
        for name in ("gate_proj", "up_proj"):
            out[f"{p}.mlp.{name}.weight"] = Tensor("U8", (17408, 2560))
            out[f"{p}.mlp.{name}.weight_scale"] = Tensor("F8_E4M3", (17408, 320))
        out[f"{p}.mlp.down_proj.weight"] = Tensor("U8", (5120, 8704))
        out[f"{p}.input_layernorm.weight"] = Tensor("BF16", (5120,))
        if i % 4 == 3:
            for name, n, k in (("q", 12288, 5120), ("k", 1024, 5120), ("v", 1024, 5120), ("o", 5120, 6144)):
                out[f"{p}.self_attn.{name}_proj.weight"] = Tensor("F8_E4M3", (n, k))
        else:
            for name, n, k in (
                ("in_proj_qkv", 10240, 5120),
                ("in_proj_z", 6144, 5120),
                ("out_proj", 5120, 6144),
            ):
                out[f"{p}.linear_attn.{name}.weight"] = Tensor("F8_E4M3", (n, k))
            for name in ("in_proj_a", "in_proj_b"):
                out[f"{p}.linear_attn.{name}.weight"] = Tensor("BF16", (48, 5120))
            out[f"{p}.linear_attn.conv1d.weight"] = Tensor("BF16", (10240, 1, 4))
    out["model.visual.blocks.layers.0.mlp.linear_fc1.weight"] = Tensor("BF16", (256, 128))
    out["mtp.layers.0.mlp.down_proj.weight"] = Tensor("BF16", (5120, 17408))
    return out


def test_headers_and_table_agree_on_the_27b() -> None:
    listed = from_table("radixark/qwen3.8-27B-NVFP4", table("gemms"))
    assert listed is not None
    assert set(from_tensors(layer_map())) == set(listed[0])


def test_the_27b_reads_what_the_facts_estimate() -> None:
    """17.6 GB a pass; facts 3.1: 16.5 to 21 GB."""
    total = sum(g.count * g.weight_bytes for g in from_tensors(layer_map()))
    mlp = 64 * 3 * 17408 * 5120 * 9 // 16
    fp8 = 48 * 5120 * (16384 + 6144) + 16 * 5120 * (14336 + 6144)
    assert total == mlp + fp8 + 48 * 96 * 5120 * 2 + 248320 * 5120 * 9 // 16
    assert 16.5e9 < total < 21e9


def test_weight_only_layers_are_named_so() -> None:
    assert {g.format for g in from_tensors(layer_map(), weight_only=True)} == {"w4a16", "fp8", "bf16"}


def test_parts_of_one_layer_in_two_formats_stay_apart() -> None:
    mixed = {
        "layers.0.mlp.gate_proj.weight": Tensor("U8", (64, 16)),
        "layers.0.mlp.up_proj.weight": Tensor("BF16", (64, 32)),
    }
    assert from_tensors(mixed) == (
        Gemm("gate_up_proj", 64, 32, "bf16"),
        Gemm("gate_up_proj", 64, 32, "nvfp4"),
    )


def test_an_unlisted_repository_is_none() -> None:
    assert from_table("someone/else", table("gemms")) is None


def test_bytes_of_a_call() -> None:
    assert Gemm("x", 32, 16, "bf16").bytes(4) == 32 * 16 * 2 + 4 * (32 + 16) * 2
