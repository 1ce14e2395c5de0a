"""A small model, its work on a pretended GPU, and timings as a run would have recorded them."""

from __future__ import annotations

from typing import Any

from launch.gemms import Gemm
from launch.registry import Registry
from launch.resolve import Resolved, resolve
from launch.tune.work import Item, work

GEMMS = (
    Gemm("gate_up_proj", 1024, 256, "nvfp4", 4),
    Gemm("down_proj", 256, 512, "nvfp4", 4),
    Gemm("out_proj", 256, 512, "fp8", 3),
)


def preset(name: str = "tiny-w4a4-dflash2", machine: str = "h200", **engine: Any) -> Resolved:
    return resolve(Registry().load(name), machine, engine or None)


def items(capability: str = "12.0", resolved: Resolved | None = None) -> tuple[Item, ...]:
    return work(resolved or preset(), capability, GEMMS)


def timings(found: tuple[Item, ...], **us: float) -> dict[str, dict[str, Any]]:
    """Every item at 10 us, or at what its option says (`flashinfer_b12x=8.0`), with one percent of scatter."""
    out: dict[str, dict[str, Any]] = {}
    for item in found:
        base = us.get(item.candidate.option, 10.0)
        out[item.key] = {"us": [base * (1 + 0.001 * (i % 5 - 2)) for i in range(15)]}
    return out
