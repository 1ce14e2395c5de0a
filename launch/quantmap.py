"""What a checkpoint says about its own quantization, read as SGLang 0.5.23 reads it. Pure.

The map (module -> label) comes from `quantization_config` in config.json, else from hf_quant_config.json;
the tensors' dtypes and shapes (safetensors headers) then tell whether the map is true.
Sources: sglang/srt/configs/model_config.py `_parse_modelopt_quant_config`, layers/quantization/
modelopt_quant.py `ModelOptMixedPrecisionConfig`; upstream-gaps A1-A6, B1.12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

FP4_LABELS = ("NVFP4", "W4A16_NVFP4")
MIXED_LABELS = frozenset({*FP4_LABELS, "FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8"})
NEEDS_P05 = frozenset({"NVFP4_AWQ", "NVFP4_SVD", "W4A8_NVFP4_FP8"})  # ModelOpt writes them, 0.5.23 drops them


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors header: dtype as the format spells it (U8, F8_E4M3, BF16, F32), shape."""

    dtype: str
    shape: tuple[int, ...]


Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class QuantMap:
    """Quantization as declared. `method` is the engine's name for it (None: unquantized).

    `layers` maps module names to labels in upper case, `groups` to their group sizes. `kv` is the declared
    KV-cache format in upper case or None. `head` is the label of the output head, BF16 when it is dense.
    """

    method: str | None = None
    algorithm: str | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    kv: str | None = None
    kv_is_string: bool = False
    source: str = "none"

    @property
    def head(self) -> str:
        """Label of `lm_head`: from the map, or the uniform algorithm unless it is ignored."""
        for name, label in self.layers.items():
            if name == "lm_head" or name.endswith(".lm_head"):
                return label
        if self.method is None or self.layers or any(fnmatch("lm_head", p) for p in self.ignore):
            return "BF16"
        return self.algorithm or "BF16"

    def counts(self) -> dict[str, int]:
        """How many modules carry each label."""
        return dict(Counter(self.layers.values()))


def read_quant_map(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> QuantMap:
    """The map of a checkpoint from its two JSON files, with the engine's precedence."""
    inline = config.get("quantization_config") or config.get("compression_config")
    if inline is None:
        text = config.get("text_config")
        inline = text.get("quantization_config") if isinstance(text, Mapping) else None
    method = str(inline.get("quant_method", "")) if isinstance(inline, Mapping) else ""
    if isinstance(inline, Mapping) and not method.startswith("modelopt"):
        return QuantMap(method=method or "unknown", source="config.json quantization_config")
    section: Mapping[str, Any] | None = inline if isinstance(inline, Mapping) else None
    source = "config.json quantization_config"
    if section is None and hf_quant_config is not None:
        section = hf_quant_config.get("quantization", hf_quant_config)
        source = "hf_quant_config.json"
    if section is None:
        return QuantMap()
    algorithm = section.get("quant_algo")
    layers, groups = _layers(section.get("quantized_layers") or {})
    kv, is_string = _kv(section)
    if kv is None and not is_string and hf_quant_config is not None:
        # The engine falls back to the other file when config.json names no KV scheme.
        kv, is_string = _kv(hf_quant_config.get("quantization", hf_quant_config))
    ignore = section.get("ignore", section.get("exclude_modules")) or ()
    return QuantMap(
        method=_method(algorithm, layers),
        algorithm=str(algorithm).upper() if algorithm else None,
        layers=layers,
        groups=groups,
        ignore=tuple(str(p) for p in ignore),
        kv=kv,
        kv_is_string=is_string,
        source=source,
    )


def _layers(raw: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    labels, groups = {}, {}
    for name, info in raw.items():
        if not isinstance(info, Mapping):
            continue
        labels[name] = str(info.get("quant_algo", "")).upper()
        if isinstance(info.get("group_size"), int):
            groups[name] = info["group_size"]
    return labels, groups


def _method(algorithm: Any, layers: Mapping[str, str]) -> str | None:
    """The engine's name for a ModelOpt checkpoint."""
    name = str(algorithm or "").upper()
    if name == "MIXED_PRECISION":
        return "modelopt_mixed" if any(label in FP4_LABELS for label in layers.values()) else "w4afp8"
    if "FP4" in name:
        return "modelopt_fp4"
    if name == "FP8":
        return "modelopt_fp8"
    return "mxfp8" if name == "MXFP8" else None


def _kv(section: Mapping[str, Any]) -> tuple[str | None, bool]:
    """(declared KV format, whether it is the string form that the mixed loader does not read)."""
    scheme = section.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("type") == "float":
        return {8: "FP8", 4: "NVFP4"}.get(scheme.get("num_bits", 0), "AUTO"), False
    if isinstance(scheme, str):
        return scheme.upper(), True
    algorithm = section.get("kv_cache_quant_algo")
    return (str(algorithm).upper(), False) if algorithm else (None, False)


def unsupported_labels(q: QuantMap) -> dict[str, list[str]]:
    """Labels of a mixed checkpoint that 0.5.23 would load as unquantized, with their modules."""
    found: dict[str, list[str]] = {}
    if q.method in ("modelopt_mixed", "w4afp8"):
        for name, label in q.layers.items():
            if label not in MIXED_LABELS:
                found.setdefault(label, []).append(name)
    return found


def head_in_tensors(tensors: Tensors) -> str | None:
    """The label the head's tensors have in fact; None when the checkpoint carries no head (tied)."""
    for prefix in ("lm_head", "language_model.lm_head", "model.lm_head"):
        weight = tensors.get(f"{prefix}.weight")
        if weight is not None:
            return _label_of(prefix, weight, tensors)
        if f"{prefix}.weight_packed" in tensors:
            return "COMPRESSED_TENSORS_FP4"
    return None


def _label_of(prefix: str, weight: Tensor, tensors: Tensors) -> str:
    if weight.dtype == "U8":
        return "NVFP4" if f"{prefix}.input_scale" in tensors else "W4A16_NVFP4"
    if weight.dtype.startswith("F8"):
        return "FP8" if f"{prefix}.weight_scale" in tensors else "FP8_PB_WO"
    return "BF16" if weight.dtype in ("BF16", "F16", "F32") else weight.dtype


@dataclass(frozen=True)
class TensorFault:
    """One disagreement between the map and the tensors. `fatal`: wrong results or no start."""

    module: str
    text: str
    fatal: bool = True


def tensor_faults(q: QuantMap, tensors: Tensors) -> Iterator[TensorFault]:
    """Check every module of the map against the headers, and every packed tensor against the map."""
    if not q.layers or not tensors:
        return
    for module, label in q.layers.items():
        weight = tensors.get(f"{module}.weight")
        if weight is None:
            yield TensorFault(module, f"the map says {label}, but there is no {module}.weight")
        elif label in FP4_LABELS:
            yield from _fp4_faults(module, label, weight, tensors, q.groups.get(module, 16))
        elif label == "FP8":
            yield from _fp8_faults(module, weight, tensors)
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        packed = name.endswith(".weight") and (tensor.dtype == "U8" or tensor.dtype.startswith("F8"))
        if packed and module not in q.layers:
            yield TensorFault(module, f"{name} is {tensor.dtype}, but the map does not name {module}")


def _fp4_faults(
    module: str, label: str, weight: Tensor, tensors: Tensors, group: int
) -> Iterator[TensorFault]:
    if weight.dtype != "U8" or len(weight.shape) != 2:
        yield TensorFault(
            module, f"the map says {label}, but the weight is {weight.dtype} {list(weight.shape)}"
        )
        return
    rows, packed = weight.shape
    scale = tensors.get(f"{module}.weight_scale")
    if scale is None:
        yield TensorFault(module, "weight_scale (one FP8 scale per group) is missing")
    elif scale.shape != (rows, 2 * packed // group):
        has = 2 * packed / scale.shape[-1] if scale.shape and scale.shape[-1] else 0
        yield TensorFault(
            module,
            f"weight_scale is {list(scale.shape)}, expected {[rows, 2 * packed // group]} for group size {group}"
            + (f" (the tensor has group size {has:g})" if has else ""),
        )
    if f"{module}.weight_scale_2" not in tensors:
        yield TensorFault(
            module, "weight_scale_2 is missing: the engine would leave it uninitialised (patch P09)"
        )
    if label == "NVFP4" and f"{module}.input_scale" not in tensors:
        yield TensorFault(
            module, "input_scale is missing: the engine takes 1.0 and loses precision", fatal=False
        )


def _fp8_faults(module: str, weight: Tensor, tensors: Tensors) -> Iterator[TensorFault]:
    if not weight.dtype.startswith("F8"):
        yield TensorFault(module, f"the map says FP8, but the weight is {weight.dtype}")
        return
    for scale in ("weight_scale", "input_scale"):
        if f"{module}.{scale}" not in tensors:
            yield TensorFault(module, f"{scale} is missing: the engine's output would be garbage (patch P09)")
