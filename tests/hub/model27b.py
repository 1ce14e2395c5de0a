"""Qwen3.8-27B and its drafts as facts.md describes them, built in memory: configs, maps and headers only."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

from launch.checkpoint import Facts
from launch.preset import Preset
from launch.quantmap import Tensor

PREFIX = "model.language_model.layers"
HIDDEN, MLP, VOCAB, LAYERS = 5120, 17_408, 248_320, 64


def quantized_layers(
    mlp: str = "NVFP4", head: str | None = "NVFP4", layers: int = LAYERS
) -> dict[str, dict[str, Any]]:
    """193 four-bit modules (MLP triplets and head) and 208 FP8 projections, as in facts 2.1."""
    out: dict[str, dict[str, Any]] = {}
    for i in range(layers):
        for m in ("gate_proj", "up_proj", "down_proj"):
            out[f"{PREFIX}.{i}.mlp.{m}"] = {"quant_algo": mlp, "group_size": 16}
        if i % 4 == 3:
            for m in ("q_proj", "k_proj", "v_proj", "o_proj"):
                out[f"{PREFIX}.{i}.self_attn.{m}"] = {"quant_algo": "FP8"}
        else:
            for m in ("in_proj_qkv", "in_proj_z", "out_proj"):
                out[f"{PREFIX}.{i}.linear_attn.{m}"] = {"quant_algo": "FP8"}
    if head:
        out["lm_head"] = {"quant_algo": head, "group_size": 16}
    return out


def tensors_of(
    layers: dict[str, dict[str, Any]], hidden: int = HIDDEN, mlp: int = MLP, vocab: int = VOCAB
) -> dict[str, Tensor]:
    """Headers that agree with the map."""
    out: dict[str, Tensor] = {"model.language_model.embed_tokens.weight": Tensor("BF16", (vocab, hidden))}
    for name, info in layers.items():
        if info["quant_algo"] == "FP8":
            out[f"{name}.weight"] = Tensor("F8_E4M3", (hidden, hidden))
            out[f"{name}.weight_scale"] = out[f"{name}.input_scale"] = Tensor("F32", ())
            continue
        rows, cols = {"lm_head": (vocab, hidden), "down_proj": (hidden, mlp)}.get(
            name.split(".")[-1], (mlp, hidden)
        )
        out[f"{name}.weight"] = Tensor("U8", (rows, cols // 2))
        out[f"{name}.weight_scale"] = Tensor("F8_E4M3", (rows, cols // 16))
        out[f"{name}.weight_scale_2"] = Tensor("F32", ())
        if info["quant_algo"] == "NVFP4":
            out[f"{name}.input_scale"] = Tensor("F32", ())
    if "lm_head" not in layers:
        out["lm_head.weight"] = Tensor("BF16", (vocab, hidden))
    out["mtp.fc.weight"] = Tensor("BF16", (hidden, 2 * hidden))
    return out


def target(*, mlp: str = "NVFP4", head: str | None = "NVFP4", kv: bool = True, **changes: Any) -> Facts:
    layers = quantized_layers(mlp, head)
    quantization: dict[str, Any] = {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers,
        "ignore": ["mtp*", "mtp.layers.0*"],
    }  # fmt: skip
    if kv:
        quantization["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "vocab_size": VOCAB, "num_key_value_heads": 4,
            "head_dim": 256, "linear_num_value_heads": 48, "max_position_embeddings": 262_144, "eos_token_id": 248_044,
        },
        "quantization_config": quantization,
    }  # fmt: skip
    facts: dict[str, Any] = {
        "name": "RadixArk/Qwen3.8-27B-NVFP4", "where": "memory", "config": config,
        "hf_quant_config": {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8" if kv else None,
                                             "quantized_layers": layers}},
        "files": {"config.json": 73_003, "hf_quant_config.json": 53_749, "model.safetensors": 21_921_697_280},
        "tensors": tensors_of(layers), "license": "apache-2.0",
    }  # fmt: skip
    return Facts(**{**facts, **changes})


DFLASH2 = {
    "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "is_causal": False, "hidden_size": HIDDEN,
    "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": MLP, "vocab_size": VOCAB, "num_target_layers": LAYERS, "sliding_window": 2048,
    "rope_parameters": {"rope_theta": 10_000_000, "rope_type": "default"},
    "dflash_config": {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 248_070,
                      "selector_rank": 256, "selector_top_k": 16, "target_layer_ids": [5, 19, 33, 47, 61]},
}  # fmt: skip


def draft(config: dict[str, Any] | None = None, **changes: Any) -> Facts:
    tensors = {
        "fc.weight": Tensor("BF16", (HIDDEN, 5 * HIDDEN)),
        "candidate_selector.hidden_projection.weight": Tensor("BF16", (256, HIDDEN)),
        "candidate_selector.predecessor_codebook": Tensor("BF16", (VOCAB, 256)),
        "candidate_selector.successor_codebook": Tensor("BF16", (VOCAB, 256)),
        "layers.0.mlp.gate_proj.weight": Tensor("BF16", (MLP, HIDDEN)),
    }
    facts: dict[str, Any] = {
        "name": "z-lab/Qwen3.8-27B-DFlash2", "where": "memory", "config": config or copy.deepcopy(DFLASH2),
        "files": {"config.json": 1239, "model.safetensors": 3_848_817_896}, "tensors": tensors, "license": "mit",
    }  # fmt: skip
    return Facts(**{**facts, **changes})


def preset(**changes: Any) -> Preset:
    """A preset like the first of issue 4, with tables replaced or extended by `changes`."""
    data: dict[str, Any] = {
        "schema": 1, "name": "t", "title": "t", "status": "experimental", "default_machine": "gb10-128",
        "target": {
            "repo": "RadixArk/Qwen3.8-27B-NVFP4", "revision": "52d1adc5f38aa5ebf099c29ed7025ba34cfbb854",
            "license": "apache-2.0",
            "expects": {"architecture": "Qwen3_5ForConditionalGeneration", "quantization": "modelopt_mixed",
                        "lm_head": "NVFP4", "kv_cache": "fp8_e4m3"},
            "geometry": {"layers": 64, "hidden_size": 5120, "vocab_size": 248_320, "native_context": 262_144,
                         "attention_layers": 16, "kv_heads": 4, "head_dim": 256, "linear_layers": 48,
                         "linear_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                         "conv_channels": 10_240, "conv_states": 3},
        },
        "draft": {"repo": "z-lab/Qwen3.8-27B-DFlash2", "revision": "50307d4c4cde6860d4eee73e2547cd786fe8e8a4",
                  "algorithm": "DFLASH", "tokens": 8, "quantization": "unquant", "license": "mit"},
        "machine": {"gb10-128": {}, "rtx-5090": {}, "rtx-pro-6000": {}},
    }  # fmt: skip
    for key, value in changes.items():
        merged = isinstance(value, dict) and isinstance(data.get(key), dict)
        data[key] = {**data[key], **value} if merged else value
    return Preset.model_validate({k: v for k, v in data.items() if v is not None})


def safetensors_bytes(tensors: dict[str, Tensor]) -> bytes:
    """A file with these tensors, all zero."""
    width = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
    header, at = {}, 0
    for name, t in tensors.items():
        size = width[t.dtype]
        for n in t.shape:
            size *= n
        header[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def write_tiny(folder: Path, facts: Facts) -> Path:
    """Write `facts` as a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(facts.config))
    if facts.hf_quant_config is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(facts.hf_quant_config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(dict(facts.tensors)))
    return folder


def tiny_target() -> Facts:
    """The same layout with four layers and small matrices: a few hundred kB."""
    layers = quantized_layers(layers=4)
    facts = target(tensors=tensors_of(layers, hidden=64, mlp=128, vocab=128))
    config = copy.deepcopy(dict(facts.config))
    config["quantization_config"]["quantized_layers"] = layers
    config["text_config"] |= {"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 128}
    return Facts(name="acme/tiny", where="memory", config=config, tensors=facts.tensors,
                 hf_quant_config={"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
                                                   "quantized_layers": layers}})  # fmt: skip
