"""Machine classes, and finding out which one this is.

Detection is a pure function of texts (`nvidia-smi` output, /proc files), so that texts captured on machines
we do not have can test it. GB10 reports its memory as [N/A]: its size comes from /proc/meminfo, the pool it
shares.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from launch.errors import ConfigError, UsageError
from launch.preset import EngineValue, MachineName

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MachineClass:
    """A kind of machine presets are written for. `unified`: CPU and GPU share one memory pool.

    `engine` and `env` are what the engine needs on this class whatever the preset; a preset's own
    [machine.NAME] table comes after and wins.
    """

    name: MachineName
    title: str
    unified: bool = False
    compute_capability: str | None = None
    engine: Mapping[str, EngineValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


CLASSES: dict[str, MachineClass] = {
    c.name: c
    for c in (
        MachineClass("gb10-128", "DGX Spark class, GB10, 128 GB unified memory", True, "12.1"),
        MachineClass("gb10-64", "GB10 with 64 GB unified memory", True, "12.1"),
        MachineClass("rtx-pro-6000", "RTX PRO 6000 Blackwell, 96 GB", False, "12.0"),
        MachineClass("rtx-5090", "GeForce RTX 5090, 32 GB", False, "12.0"),
        MachineClass("h200", "H200, 141 GB (for our own runs)", False, "9.0"),
        MachineClass(
            "cpu",
            "no GPU: reference numerics, fixture checkpoints only",
            engine={
                "device": "cpu",
                "attention_backend": "torch_native",
                # FP8 KV, which the checkpoints ask for, needs AMX here.
                "kv_cache_dtype": "bf16",
                "sleep_on_idle": True,
            },
            env={
                # The engine's is_cpu() asks only this, whatever --device says.
                "SGLANG_USE_CPU_ENGINE": "1",
                # DFLASH has torch.compile helpers that would want a C++ compiler at run time.
                "TORCHDYNAMO_DISABLE": "1",
                # A CUDA kernel in Qwen3.5's MLP; the reference layers take plain activations.
                "SGLANG_DISABLE_SILU_FP4_QUANT_FUSION": "1",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "OMP_NUM_THREADS": "1",
            },
        ),
    )
}
assert set(CLASSES) == set(get_args(MachineName))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of `nvidia-smi --query-gpu`. `memory_bytes` is None where the driver says [N/A] (GB10)."""

    name: str
    compute_capability: str | None
    memory_bytes: int | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine is, and how we know."""

    name: MachineName
    gpus: tuple[Gpu, ...]
    memory_bytes: int
    source: str


SMI_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,compute_cap,memory.total,driver_version",
    "--format=csv,noheader,nounits",
)


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """GPUs from the answer to SMI_QUERY. Unknown fields ([N/A], [Not Supported]) become None."""
    gpus = []
    for line in text.splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) != 4 or not parts[0] or parts[0].startswith("["):
            continue
        name, capability, memory, driver = parts
        gpus.append(
            Gpu(
                name,
                capability if re.fullmatch(r"\d+\.\d+", capability) else None,
                int(memory) << 20 if memory.isdigit() else None,
                driver if re.fullmatch(r"[\d.]+", driver) else None,
            )
        )
    return tuple(gpus)


def parse_proc_gpu(text: str) -> Gpu | None:
    """A GPU from /proc/driver/nvidia/gpus/*/information, for hosts without nvidia-smi."""
    found = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
    return Gpu(found[1], None, None, None) if found else None


def parse_meminfo(text: str) -> int:
    """MemTotal of /proc/meminfo in bytes; 0 where it is not told."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def classify(gpus: tuple[Gpu, ...], memory_bytes: int) -> MachineName | None:
    """The class of a machine with these GPUs and this much host memory; None for a GPU without a class."""
    if not gpus:
        return "cpu"
    name = gpus[0].name.upper()
    if "GB10" in name:
        # 128 GB machines show about 121.7 GiB, 64 GB ones less than half of that.
        return "gb10-128" if memory_bytes >= 96 * GIB else "gb10-64"
    if "RTX PRO 6000" in name and "BLACKWELL" in name:
        return "rtx-pro-6000"
    if re.search(r"RTX 5090(?! D| LAPTOP)", name):
        return "rtx-5090"
    if re.search(r"\bH200\b", name):
        return "h200"
    return None


def detect() -> Machine:
    """This machine. Raises ConfigError for a GPU that no class describes."""
    gpus, source = _gpus()
    memory = parse_meminfo(_read(Path("/proc/meminfo")))
    name = classify(gpus, memory)
    if name is None:
        known = ", ".join(c for c in CLASSES if c != "cpu")
        raise ConfigError(
            f"no machine class describes {gpus[0].name}; choose the closest with --machine ({known})"
        )
    return Machine(name, gpus, memory, source)


def detect_gpus() -> tuple[Gpu, ...]:
    """The GPUs CUDA would see here, also those no class describes."""
    return _gpus()[0]


def by_name(name: str) -> MachineClass:
    """The class of that name. Raises UsageError that lists them."""
    if name not in CLASSES:
        raise UsageError(f"unknown machine class {name!r}; known: {', '.join(CLASSES)}")
    return CLASSES[name]


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    # Cheap test first: without the driver's device node there is nothing to ask, and asking costs a fork.
    if not Path("/dev/nvidiactl").exists() and not Path("/proc/driver/nvidia/version").exists():
        return (), "no NVIDIA driver"
    try:
        done = subprocess.run(SMI_QUERY, capture_output=True, text=True, timeout=20, check=False)
        gpus = parse_smi(done.stdout) if done.returncode == 0 else ()
        if gpus:
            return _visible(gpus), "nvidia-smi"
    except (OSError, subprocess.TimeoutExpired):
        pass
    found = [parse_proc_gpu(_read(p)) for p in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    return _visible(tuple(g for g in found if g is not None)), "/proc/driver/nvidia"


def _visible(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Only what CUDA_VISIBLE_DEVICES leaves; indices only, other forms (UUIDs) are left to the driver."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return gpus
    if value.strip() in ("", "-1"):
        return ()
    indices = value.split(",")
    if all(i.strip().isdigit() for i in indices):
        return tuple(gpus[int(i)] for i in indices if int(i) < len(gpus))
    return gpus


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
