"""EngineFacts: one typed answer to "what is this engine doing", from log, /server_info and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smoke.engine.log import LogFacts, parse_log

# Layers whose word on a GEMM backend is a quantization's, in /server_info's spelling (0.5.19 .. 0.5.23).
_GEMM_KEYS = ("fp4_gemm_runner_backend", "fp4_gemm_backend", "fp8_gemm_runner_backend", "fp8_gemm_backend")


@dataclass(frozen=True)
class EngineFacts:
    """What the engine says of itself. None: not said by any source that this target offers.

    `log` is None when the target has no log (a url); every fact that needs it is then None too.
    """

    version: str | None
    device: str | None
    log: LogFacts | None
    model_path: str | None
    revision: str | None
    served_name: str | None
    algorithm: str | None  # DFLASH, ..., None: no speculation
    draft_path: str | None
    draft_revision: str | None
    draft_quantization: str | None
    draft_tokens: int | None
    quantization: str | None
    kv_dtype: str | None
    attention: str | None
    prefill_attention: str | None
    decode_attention: str | None
    gemm: tuple[str, ...]
    pool_tokens: int | None
    running_limit: int | None
    running_asked: int | None
    context_length: int | None
    graph_gigabytes: Mapping[str, float]
    memory: Mapping[str, Any]

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def speculative(self) -> bool:
        return bool(self.algorithm)

    def captured(self, role: str) -> tuple[str, ...]:
        """The phases whose graph capture completed, by the log."""
        return () if self.log is None else tuple(g.phase for g in self.log.graphs if g.role == role)


def gather(info: Mapping[str, Any] | None, log: str | None) -> EngineFacts:
    """`info`: /server_info (or /get_server_info) as JSON; `log`: the text, None where there is none."""
    info = info or {}
    lf = None if log is None else parse_log(log)
    states = info.get("internal_states")
    state: Mapping[str, Any] = states[0] if isinstance(states, list) and states else {}
    memory: Mapping[str, Any] = state.get("memory_usage") or {}
    graph = memory.get("graph")
    return EngineFacts(
        version=_s(info.get("version")),
        device=_s(info.get("device")),
        log=lf,
        model_path=_s(info.get("model_path")),
        revision=_s(info.get("revision")),
        served_name=_s(info.get("served_model_name")),
        algorithm=_s(info.get("speculative_algorithm")),
        draft_path=_s(info.get("speculative_draft_model_path")),
        draft_revision=_s(info.get("speculative_draft_model_revision")),
        draft_quantization=_s(info.get("speculative_draft_model_quantization")),
        draft_tokens=_i(info.get("speculative_num_draft_tokens")) or (lf.block_size if lf else None),
        quantization=_s(info.get("quantization")) or (lf.quantization if lf else None),
        kv_dtype=_kv(lf.kv_dtype if lf else None, _s(info.get("kv_cache_dtype"))),
        attention=_s(info.get("attention_backend")),
        prefill_attention=_s(info.get("prefill_attention_backend")),
        decode_attention=_s(info.get("decode_attention_backend")),
        gemm=tuple(f"{k}={info[k]}" for k in _GEMM_KEYS if info.get(k)),
        pool_tokens=_first(
            memory.get("token_capacity"), info.get("max_total_num_tokens"), lf and lf.pool_tokens
        ),
        running_limit=_first(
            state.get("effective_max_running_requests_per_dp"),
            lf and lf.running_limit,
        ),
        running_asked=_i(info.get("max_running_requests")),
        context_length=_first(lf and lf.context_length, info.get("context_length")),
        graph_gigabytes={k: float(v) for k, v in graph.items()} if isinstance(graph, Mapping) else {},
        memory=memory,
    )


def _kv(from_log: str | None, declared: str | None) -> str | None:
    """The allocated dtype wins over the declared one, which may say `auto`."""
    names = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "bf16": "bfloat16", "uint8": "nvfp4"}
    if from_log:
        return names.get(from_log, from_log)
    return None if declared in (None, "auto") else names.get(declared, declared)


def _s(v: object) -> str | None:
    return str(v) if v not in (None, "", "null", "None") else None


def _i(v: object) -> int | None:
    try:
        return None if v is None else int(v)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return None


def _first(*values: object) -> int | None:
    return next((i for v in values if (i := _i(v)) is not None), None)
