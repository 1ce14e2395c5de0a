"""Tiny model directories: configs in the layouts exporters write, and synthetic checkpoints to match.

Sizes are the smallest that keep every rule of the real models alive: hidden 256 and intermediate 512
(legal for 16-wide NVFP4 and 128-wide block scales), three GDN layers and one attention layer, and a
vocabulary of 1000 that is padded to 1024.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HIDDEN, INTERMEDIATE, VOCAB, DRAFT_LAYERS, HEAD_DIM = 256, 512, 1000, 2, 64
_Q, _KV = 4 * HEAD_DIM, 2 * HEAD_DIM
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
GDN = ("in_proj_qkv", "in_proj_z", "out_proj")

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "mtp_num_hidden_layers": 1,
    "dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
VISION = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": HIDDEN}


def mixed_quant(head: str | None = "NVFP4", mlp: str = "NVFP4", linear: str = "FP8") -> dict[str, Any]:
    """ModelOpt MIXED_PRECISION as exported into config.json: per-module labels, FP8 KV cache."""
    layers: dict[str, Any] = {}
    if head:
        layers["lm_head"] = _label(head)
    root = "model.language_model.layers"
    layers |= {f"{root}.{i}.mlp.{p}": _label(mlp) for i in range(4) for p in MLP}
    layers |= {f"{root}.{i}.linear_attn.{p}": _label(linear) for i in range(3) for p in GDN}
    layers |= {f"{root}.3.self_attn.{p}": _label(linear) for p in ATTENTION}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "ignore": ["mtp*", "model.visual*"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "quantized_layers": layers,
    }


def _label(algo: str) -> dict[str, Any]:
    return {"quant_algo": algo, "group_size": 16} if "NVFP4" in algo else {"quant_algo": algo}


def uniform_nvfp4(ignore: Sequence[str] = ("mtp*", "model.visual*")) -> dict[str, Any]:
    """ModelOpt uniform NVFP4 in its config-groups form."""
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": list(ignore),
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}, "targets": ["Linear"]}},
    }


def flat_nvfp4(ignore: Sequence[str] = ("fc", "candidate_selector*")) -> dict[str, Any]:
    """ModelOpt uniform NVFP4 in its flat form."""
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": list(ignore), "group_size": 16}


def modelopt_fp8(ignore: Sequence[str] = ()) -> dict[str, Any]:
    """ModelOpt per-tensor FP8."""
    return {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": list(ignore)}


def block_fp8() -> dict[str, Any]:
    """FP8 with 128x128 block scales, dynamic activations."""
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed_w4a16(ignore: Sequence[str] = ("re:.*kernel_projection$", "re:.*candidate_selector.*")) -> Any:
    """compressed-tensors pack-quantized INT4 weights, group 128."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }


def mixed_draft_quant() -> dict[str, Any]:
    """ModelOpt MIXED_PRECISION for a DFlash draft: attention and MLP in NVFP4, `fc` left in bf16."""
    layers = {f"layers.{i}.self_attn.{p}": _label("NVFP4") for i in range(DRAFT_LAYERS) for p in ATTENTION}
    layers |= {f"layers.{i}.mlp.{p}": _label("NVFP4") for i in range(DRAFT_LAYERS) for p in MLP}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "ignore": [],
        "kv_cache_scheme": None,
        "quantized_layers": layers,
    }


def target_config(quant: dict[str, Any] | None = None, *, text_only: bool = False) -> dict[str, Any]:
    """config.json of a tiny Qwen3.5 target: multimodal wrapper, or the causal LM alone."""
    extra = {"quantization_config": copy.deepcopy(quant)} if quant else {}
    if text_only:
        return {**copy.deepcopy(TEXT), "architectures": ["Qwen3_5ForCausalLM"], **extra}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": copy.deepcopy(TEXT),
        "tie_word_embeddings": False,
        "vision_config": dict(VISION),
        "dtype": "bfloat16",
        **extra,
    }


def draft_config(
    kind: str = "dflash2", quant: dict[str, Any] | None = None, *, top_k: int = 16, block_size: int = 8
) -> dict[str, Any]:
    """config.json of a tiny draft for `target_config`: kind is dflash, dflash2 or dspark."""
    architecture = {
        "dflash": "DFlashDraftModel",
        "dflash2": "DFlash2DraftModel",
        "dspark": "Qwen3DSparkModel",
    }[kind]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": DRAFT_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e7,
        "dtype": "bfloat16",
        "block_size": block_size,
        "num_target_layers": 4,
    }
    shared = {"block_size": block_size, "target_layer_ids": [1, 2], "mask_token_id": VOCAB - 1}
    if kind == "dspark":
        markov = {"markov_rank": 32, "markov_head_type": "vanilla", "enable_confidence_head": False}
        config |= {**shared, **markov, "dspark_config": {**shared, **markov}}
    else:
        config["dflash_config"] = dict(shared)
    if kind == "dflash2":
        config["dflash_config"] |= {
            "selector_rank": 32,
            "selector_top_k": top_k,
            "conv_kernel_size": 3,
            "conv_group_size": 16,
        }
    return {**config, **({"quantization_config": copy.deepcopy(quant)} if quant else {})}


class TinyModels:
    """Writes model directories below `root`; every method returns the directory."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def write(
        self,
        name: str,
        config: dict[str, Any],
        tensors: dict[str, Any] | None = None,
        hf_quant_config: dict[str, Any] | None = None,
    ) -> Path:
        """A directory with config.json, and model.safetensors / hf_quant_config.json when given."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=1))
        if hf_quant_config is not None:
            (path / "hf_quant_config.json").write_text(json.dumps(hf_quant_config, indent=1))
        if tensors is not None:
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in tensors.items()}, str(path / "model.safetensors"))
        return path

    def target(self, name: str = "target", quant: dict[str, Any] | None = None, **kw: Any) -> Path:
        return self.write(name, target_config(quant, **kw))

    def draft(
        self, name: str = "draft", kind: str = "dflash2", quant: dict[str, Any] | None = None, **kw: Any
    ) -> Path:
        return self.write(name, draft_config(kind, quant, **kw))


def draft_tensors(
    fmt: str = "bf16",
    *,
    kind: str = "dflash2",
    quant_fc: bool = False,
    quant_conv: bool = False,
    omit: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """A synthetic draft checkpoint for `draft_config`, named as exporters name things.

    fmt: bf16, nvfp4 (ModelOpt), fp8 (ModelOpt per tensor) or ct4 (compressed-tensors W4A16). `quant_fc` /
    `quant_conv` quantize the context projection / the conv and selector projections too. `omit` drops
    every tensor whose name ends with one of these.
    """
    import torch

    g = torch.Generator().manual_seed(seed)
    out: dict[str, Any] = {}

    def rand(*shape: int) -> Any:
        return torch.randn(*shape, generator=g).to(torch.bfloat16)

    def linear(name: str, n: int, k: int, quant: bool = True) -> None:
        out.update({f"{name}.{s}": t for s, t in packed_linear(fmt if quant else "bf16", n, k, g).items()})

    for i in range(DRAFT_LAYERS):
        p = f"layers.{i}."
        for q, n in (("q_proj", _Q), ("k_proj", _KV), ("v_proj", _KV)):
            linear(f"{p}self_attn.{q}", n, HIDDEN)
        linear(f"{p}self_attn.o_proj", HIDDEN, _Q)
        linear(f"{p}mlp.gate_proj", INTERMEDIATE, HIDDEN)
        linear(f"{p}mlp.up_proj", INTERMEDIATE, HIDDEN)
        linear(f"{p}mlp.down_proj", HIDDEN, INTERMEDIATE)
        for n in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{n}.weight"] = rand(HIDDEN)
        for n in ("q_norm", "k_norm"):
            out[f"{p}self_attn.{n}.weight"] = rand(HEAD_DIM)
        if kind == "dflash2":
            for c in ("attention_conv", "mlp_conv"):
                out[f"{p}{c}.base_kernel"] = torch.randn(2, 3, HIDDEN, generator=g)
                linear(f"{p}{c}.kernel_projection", 2 * 3 * (HIDDEN // 16), HIDDEN, quant_conv)
    linear("fc", HIDDEN, 2 * HIDDEN, quant_fc)
    for n in ("norm", "hidden_norm"):
        out[f"{n}.weight"] = rand(HIDDEN)
    if kind == "dflash2":
        for n in ("predecessor_codebook", "successor_codebook"):
            out[f"candidate_selector.{n}"] = rand(VOCAB, 32)
        linear("candidate_selector.hidden_projection", 32, HIDDEN, quant_conv)
    if kind == "dspark":
        for n in ("markov_w1", "markov_w2"):
            out[f"markov_head.{n}.weight"] = rand(VOCAB, 32)
    return {k: v for k, v in out.items() if not k.endswith(tuple(omit))} if omit else out


def packed_linear(fmt: str, n: int, k: int, generator: Any = None) -> dict[str, Any]:
    """Suffix -> tensor of one n x k linear layer in a checkpoint format (values are arbitrary, legal)."""
    import torch

    def real(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    if fmt == "bf16":
        return {"weight": real(n, k).to(torch.bfloat16)}
    if fmt in ("nvfp4", "nvfp4_a16"):
        parts = {
            "weight": torch.randint(0, 255, (n, k // 2), dtype=torch.uint8, generator=generator),
            "weight_scale": (real(n, k // 16).abs() + 0.5).to(torch.float8_e4m3fn),
            "weight_scale_2": torch.tensor(0.01),
        }
        return parts if fmt == "nvfp4_a16" else {**parts, "input_scale": torch.tensor(0.02)}
    if fmt == "fp8":
        weight = real(n, k).to(torch.float8_e4m3fn)
        return {"weight": weight, "weight_scale": torch.tensor(0.01), "input_scale": torch.tensor(0.02)}
    if fmt == "ct4":
        return {
            "weight_packed": torch.randint(
                -(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32, generator=generator
            ),
            "weight_scale": real(n, k // 128).to(torch.bfloat16),
            "weight_shape": torch.tensor([n, k]),
        }
    raise ValueError(f"unknown format {fmt!r}: bf16, nvfp4, nvfp4_a16, fp8 or ct4")
