"""Environment and flags that start SGLang on the CPU engine. Standard library only.

Use: `subprocess.Popen([python, "-m", "sglang.launch_server", *engine_args(model), ...], env=engine_env(os.environ))`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

SHADOW = Path(__file__).resolve().parent / "shadow"

ENV: dict[str, str] = {
    # is_cpu() in SGLang asks only this variable, whatever --device says.
    "SGLANG_USE_CPU_ENGINE": "1",
    # DFLASH has torch.compile helpers: without dynamo no C++ compiler is needed and the start is faster.
    "TORCHDYNAMO_DISABLE": "1",
    # A FlashInfer CUDA kernel in Qwen3.5's dense MLP; the reference linear takes plain activations.
    "SGLANG_DISABLE_SILU_FP4_QUANT_FUSION": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Set on many machines; with it every boot compiles all of SGLang again in three processes (90 s, not 30).
UNSET = ("PYTHONDONTWRITEBYTECODE",)

ARGS: tuple[str, ...] = (
    "--device", "cpu",
    "--attention-backend", "torch_native",
    # Without a limit the KV pool takes most of the memory and half a minute of page touching.
    "--max-total-tokens", "16384",
    "--max-running-requests", "8",
    "--context-length", "4096",
    # Otherwise the idle scheduler polls and takes a whole core.
    "--sleep-on-idle",
    # A checkpoint that asks for FP8 KV ends the start: CPU FP8 KV needs Intel AMX.
    "--kv-cache-dtype", "bf16",
)  # fmt: skip
HYBRID_ARGS: tuple[str, ...] = (
    # Snapshots of the recurrent state (extra_buffer) exist on GPUs only.
    "--mamba-radix-cache-strategy", "no_buffer",
    "--disable-overlap-schedule",
    "--max-mamba-cache-size", "32",
)  # fmt: skip


def engine_env(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a server on the CPU engine: `base` (default: this process's) with our values on top.

    The shadow folder goes first on PYTHONPATH; OMP_NUM_THREADS is kept when set, else 1 (the models are tiny).
    """
    env = dict(os.environ if base is None else base)
    for name in UNSET:
        env.pop(name, None)
    env.update(ENV)
    env.setdefault("OMP_NUM_THREADS", "1")
    rest = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(SHADOW)]
    env["PYTHONPATH"] = os.pathsep.join([str(SHADOW), *rest])
    return env


def is_hybrid(model_dir: str | Path) -> bool:
    """Whether config.json of a checkpoint has linear-attention layers (Qwen3.5, Qwen3-Next)."""
    config = json.loads((Path(model_dir) / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    return "linear_attention" in (text.get("layer_types") or [])


def engine_args(model_dir: str | Path) -> list[str]:
    """Flags of `sglang.launch_server` for a checkpoint directory, --model-path included; later flags win."""
    args = ["--model-path", str(model_dir), *ARGS]
    if is_hybrid(model_dir):
        args += HYBRID_ARGS
    return args
