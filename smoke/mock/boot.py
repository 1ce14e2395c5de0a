"""The mock's boot: its log (0.5.23, recorded on an H200), its /server_info and its metrics, with the faults that show there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LOGS = Path(__file__).with_name("logs")
BASE = "0.5.23-h200-dflash2-recorded.log"
# A fixture tunes nothing: these two lines are transcribed, as the README beside the logs says.
TUNING = (
    "[2026-12-01 03:59:50] Running FlashInfer autotune with cache: /cache/autotune/0.7.2/rank_tp0_pp0_dp0.json\n"
    "[2026-12-01 03:59:50] FlashInfer autotune completed.\n"
)
CONTEXT, POOL, STREAMS = 1024, 8192, 8
TARGET_REVISION, DRAFT_REVISION = "a" * 40, "b" * 40

# fault -> (line pattern, replacement); None drops the line.
_EDITS: dict[str, list[tuple[str, str | None]]] = {
    "no-target-graph": [(r"Capture target verify", None)],
    "capture-unfinished": [(r"Capture target verify CUDA graph end", None)],
    "no-draft-graph": [(r"Capture draft", None)],
    "selector-silent": [(r"DFLASH selector decode", None)],
    "autotune-unfinished": [(r"autotune completed", None)],
    "decode-eager": [(r"cuda graph: True", "cuda graph: False")],
    "kv-bf16": [(r"torch\.float8_e4m3fn", "torch.bfloat16")],
    "head-unpacked": [
        (
            r"LM head: .*",
            "LM head: method=UnquantizedEmbeddingMethod, weight=bfloat16[248320x5120], bytes=2542796800.",
        )
    ],
    "not-quantized": [(r"quant=modelopt_mixed, quant_algo=MIXED_PRECISION, ", "")],
}
_ADDS = {
    "traceback-in-log": "Traceback (most recent call last):\n  File 'x.py', line 1\nRuntimeError: swallowed",
    "draft-graph-off": "Disable DFLASH draft cuda graph because only 0.42 GB GPU memory is available after target "
    "backend initialization.",
    "head-eager": "DFLASH draft greedy head kept eager (reason=unsupported quantized lm_head).",
    "fused-kv-failed": "DFLASH fused KV initialization failed, falling back to sequential path: no kernel image",
}


def boot_log(faults: frozenset[str], control: bool, boots: int) -> str:
    text = (LOGS / BASE).read_text()
    begin = next(ln for ln in text.splitlines() if "Capture target" in ln)
    text = text.replace(begin, TUNING + begin)
    if boots > 1:  # by then Triton finds it in its cache
        text = "\n".join(ln for ln in text.splitlines() if "Triton kernel" not in ln) + "\n"
    text = text.replace("300000", str(CONTEXT // 2 if "tiny-pool" in faults else POOL))
    text = text.replace("32768", str(CONTEXT // 2 if "other-context" in faults else CONTEXT))
    if "streams-clamped" in faults:
        text = text.replace("max_running_requests=8", "max_running_requests=2")
    if "other-draft-tokens" in faults:
        text = text.replace("block_size=8", "block_size=16")
    if control:
        text = "\n".join(ln for ln in text.splitlines() if "DFLASH" not in ln and "draft" not in ln) + "\n"
        text = text.replace("target verify", "target decode")
    for fault in faults:
        for pattern, new in _EDITS.get(fault, ()):
            lines = text.splitlines()
            if new is None:
                lines = [ln for ln in lines if not re.search(pattern, ln)]
            else:
                lines = [re.sub(pattern, new, ln) for ln in lines]
            text = "\n".join(lines) + "\n"
        if fault in _ADDS:
            ready = next(ln for ln in text.splitlines() if "ready to roll" in ln)
            text = text.replace(ready, f"[2026-12-01 04:06:06] {_ADDS[fault]}\n{ready}")
    if "compiles-again" in faults and boots > 1:
        text = "2026-11-30 22:00:01,004 - INFO - core.py:594 - flashinfer.jit: Building JIT module topk; this can " \
            "take several minutes on first use.\n" + text  # fmt: skip
    return text


def server_info(faults: frozenset[str], control: bool, model_path: str) -> dict[str, Any]:
    draft = not control and "no-speculation" not in faults
    pool = CONTEXT // 2 if "tiny-pool" in faults else POOL
    return {
        "version": "0.5.23",
        "device": "cuda",
        "model_path": model_path,
        "revision": "c" * 40 if "moved-revision" in faults else TARGET_REVISION,
        "served_model_name": "mock",
        "quantization": None if "not-quantized" in faults else "modelopt_mixed",
        "kv_cache_dtype": "fp8_e4m3",
        "attention_backend": "triton" if "attention-triton" in faults else "flashinfer",
        "fp4_gemm_runner_backend": "marlin" if "gemm-marlin" in faults else "flashinfer_cutlass",
        "speculative_algorithm": "DFLASH" if draft else None,
        "speculative_draft_model_path": "/models/draft" if draft else None,
        "speculative_draft_model_revision": DRAFT_REVISION if draft else None,
        "speculative_draft_model_quantization": "modelopt_mixed" if "draft-inherits" in faults else "unquant",
        "speculative_num_draft_tokens": (16 if "other-draft-tokens" in faults else 8) if draft else None,
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen3_coder",
        "max_running_requests": STREAMS,
        "context_length": CONTEXT // 2 if "other-context" in faults else CONTEXT,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": 2 if "streams-clamped" in faults else STREAMS,
                "memory_usage": {
                    "weight": 20.6, "kvcache": 25.2, "token_capacity": pool, "graph": {"decode": 0.4, "draft": 0.2},
                },
            }
        ],
    }  # fmt: skip


def metrics(running: int) -> str:
    return (
        "# HELP sglang:num_running_reqs The number of running requests.\n# TYPE sglang:num_running_reqs gauge\n"
        f'sglang:num_running_reqs{{model_name="mock",tp_rank="0"}} {running}.0\n'
        "# HELP sglang:num_queue_reqs The number of requests in the waiting queue.\n"
        '# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{model_name="mock",tp_rank="0"} 0.0\n'
    )
