"""The dense layers a target reads every step: name, shape, format, count. From tensor headers, or models/gemms.toml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.errors import ConfigError
from launch.quantmap import Tensor
from launch.resolve import Resolved

# What the engine fuses into one GEMM (models/qwen3_5.py packed_modules_mapping).
FUSED = {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "in_proj_qkv": "in_proj_qkvz",
    "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
}
WIDTH = {"nvfp4": 9 / 16, "w4a16": 9 / 16, "fp8": 1.0, "bf16": 2.0}
HEAD = "lm_head"
_LAYER = re.compile(r"^(?!visual|model\.visual|mtp)(?:.*\.)?layers\.(\d+)\.(?:.*\.)?(\w+)\.weight$")


@dataclass(frozen=True, slots=True)
class Gemm:
    """`count` matrices of n outputs by k inputs, in `format`; one is read whole for any small number of rows."""

    name: str
    n: int
    k: int
    format: str
    count: int = 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of one matrix with its block scales."""
        return round(self.n * self.k * WIDTH[self.format])

    def bytes(self, rows: int) -> int:
        """Bytes one call must move for `rows` of BF16 activations: weight, inputs, outputs."""
        return self.weight_bytes + 2 * rows * (self.n + self.k)


def from_tensors(tensors: Mapping[str, Tensor], *, weight_only: bool = False) -> tuple[Gemm, ...]:
    """Dense layers of the text model in a checkpoint's headers, fused as the engine fuses them.

    Vision tower, MTP layers and embeddings are left out: a decoding step does not read them whole.
    `weight_only` names packed layers w4a16. Tensors of three dimensions (experts, convolutions) are left out as well.
    """
    packed = "w4a16" if weight_only else "nvfp4"
    rows: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        found = _LAYER.match(name)
        layer, module = (found[1], found[2]) if found else ("", HEAD)
        if found is None and not re.fullmatch(r"(?:.*\.)?lm_head\.weight", name):
            continue
        if len(tensor.shape) != 2:
            continue
        n, k = tensor.shape
        plain = "fp8" if tensor.dtype.startswith("F8") else "bf16"
        shape = (n, 2 * k, packed) if tensor.dtype == "U8" else (n, k, plain)
        rows.setdefault((layer, FUSED.get(module, module)), []).append(shape)
    counted: Counter[tuple[str, int, int, str]] = Counter()
    for (_, module), parts in rows.items():
        for k, fmt in sorted({(k, f) for _, k, f in parts}):
            counted[module, sum(n for n, k2, f2 in parts if (k2, f2) == (k, fmt)), k, fmt] += 1
    return tuple(Gemm(*key, count=count) for key, count in sorted(counted.items()))


def from_table(repo: str, table: Mapping[str, Any]) -> tuple[tuple[Gemm, ...], str] | None:
    """Layers and their source from models/gemms.toml; None for a repository nobody has listed."""
    for entry in table["target"]:
        if repo.lower() in (r.lower() for r in entry["repos"]):
            return tuple(Gemm(**g) for g in entry["gemms"]), str(entry["source"])
    return None


def gemms_of(resolved: Resolved) -> tuple[tuple[Gemm, ...], str]:
    """(layers, where they come from) of a preset's target: its folder on this disk, else the table. I/O edge.

    ConfigError when it is neither here nor listed.
    """
    from launch import paths
    from launch.checkpoint import from_folder
    from launch.hub import Hub, default_cache
    from launch.pinned import pinned_repo
    from launch.planfacts import table

    target = resolved.preset.target
    weight_only = "W4A16" in (target.expects.lm_head or "")
    folder = None
    if target.fixture is not None:
        folder = paths.fixtures_dir() / target.fixture
    elif target.repo is not None and target.revision is not None:
        snapshot = Hub(endpoint="", cache=default_cache().absolute()).snapshot(pinned_repo("target", target))
        if (snapshot / "config.json").is_file() and any(snapshot.glob("*.safetensors")):
            folder = snapshot
    if folder is not None:
        found = from_folder(folder)
        layers = from_tensors(found.tensors, weight_only=weight_only)
        if not layers:
            raise ConfigError(f"{folder}: no dense layers in its tensor headers; is it a language model?")
        return layers, f"tensor headers of {folder.name}"
    listed = from_table(target.repo or "", table("gemms"))
    if listed is None:
        raise ConfigError(
            f"target {target.source} is not on this disk and its layers are not listed; "
            f"run `sparkserve pull {resolved.preset.name}`, or add it to launch/models/gemms.toml"
        )
    return listed
