"""Refuse to run the reference numerics where a GPU is present. Standard library only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

EX_CONFIG = 78
SIGNS = ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia/version", "dev/kfd", "dev/dxg")


def gpu_sign(root: Path | str = "/") -> str | None:
    """The first sign of a GPU driver (NVIDIA, ROCm, WSL), without importing CUDA; None where there is none."""
    for sign in SIGNS:
        path = Path(root) / sign
        if path.exists():
            return str(path)
    return None


def wanted() -> bool:
    return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"


def stop(message: str) -> None:
    """End this process with one line. SystemExit, because SGLang logs and swallows a plugin's Exception."""
    sys.stderr.write(f"cpu engine: {message}\n")
    sys.stderr.flush()
    raise SystemExit(EX_CONFIG)


def check(root: Path | str = "/") -> None:
    """End the process when a GPU is present.

    Raises: SystemExit(78) after one line on stderr.
    """
    sign = gpu_sign(root)
    if sign is None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            sign = "torch.cuda.is_available()"
    if sign is not None:
        stop(
            f"a GPU is present ({sign}) and this folder holds reference numerics for machines without one; "
            "unset SGLANG_USE_CPU_ENGINE and take smoke/cpu_engine/shadow off PYTHONPATH"
        )
