"""What the engine may compile while it runs: how many compilers at once, or none. Pure.

FlashInfer and SGLang compile a kernel that is neither prebuilt nor cached when it is first asked for, FlashInfer with as many
processes as there are cores; one of its FP4 GEMM files takes 7.1 GB (nvcc 13.0, measured), which has frozen machines whose
memory CPU and GPU share. Triton compiles in its own process with a small ptxas, needs the device's shapes and is not forbidden.
"""

from __future__ import annotations

from collections.abc import Mapping

GIB = 1 << 30
GIB_EACH = 7.3  # the largest compiler process seen: fp4_gemm_cutlass_sm120
KEEP_FREE_GIB = 1.5


def forbidden(env: Mapping[str, str]) -> bool:
    """Whether the operator set SPARK_NO_COMPILE."""
    return env.get("SPARK_NO_COMPILE", "").lower() not in ("", "0", "false", "no")


def jobs(available_bytes: float, cpus: int) -> int:
    """Compiler processes side by side: what memory holds, never more than processors, never none."""
    return max(1, min(cpus, int((available_bytes / GIB - KEEP_FREE_GIB) / GIB_EACH)))


def environment(env: Mapping[str, str], *, available_bytes: float, cpus: int, hook: str) -> dict[str, str]:
    """What to set in the engine's environment `env`.

    `available_bytes` is host memory that stays free once the engine has taken its share. MAX_JOBS in `env` is an upper limit:
    it is lowered to what memory holds, never raised. `hook` is the folder of launch/hook.
    """
    limit = env.get("MAX_JOBS", "")
    cap = jobs(available_bytes, cpus)
    found = {"MAX_JOBS": str(min(cap, int(limit)) if limit.isdigit() and int(limit) else cap)}
    # Tuned once, kept in the cache folder (keyed by image, GPU and driver in the container), the same at every boot.
    found["SGLANG_FLASHINFER_AUTOTUNE_FROZEN"] = env.get("SGLANG_FLASHINFER_AUTOTUNE_FROZEN", "1")
    if forbidden(env):
        found |= {"FLASHINFER_DISABLE_JIT": "1", "SGLANG_CRASH_ON_JIT_COMPILE": "1"}
    if forbidden(env) or env.get("SPARK_RECORD"):
        path = env.get("PYTHONPATH")
        found["PYTHONPATH"] = f"{hook}:{path}" if path else hook
    return found
