"""What machine this is, for the report. Nothing here decides anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("sglang", "torch", "flashinfer-python", "triton", "transformers", "nvidia-modelopt")


def gpus() -> tuple[list[str], str | None]:
    """(names with memory, driver version); empty and None where nvidia-smi does not answer."""
    try:
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return [], None
    rows = [[c.strip() for c in line.split(",")] for line in out.splitlines() if line.count(",") == 2]
    return [f"{r[0]} ({r[1]})" for r in rows], rows[0][2] if rows else None


def cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def describe(on_cpu: bool) -> str:
    """One line: `CPU reference engine (…)`, or the GPUs."""
    if on_cpu:
        return f"CPU reference engine ({cpu()}, {os.cpu_count()} cores)"
    names, _ = gpus()
    return ", ".join(names) if names else "unknown"


def versions() -> dict[str, str]:
    out = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out
