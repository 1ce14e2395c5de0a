"""Read SGLang's log. Line formats: sources of 0.5.19, 0.5.21 and 0.5.23 (file named at each pattern)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

_GB = r"(-?[0-9.]+) GB"  # below zero where a neighbour on the card freed memory meanwhile

# model_executor/model_runner_components/cuda_graph_setup.py: capture_prefill_graph, capture_decode_graph.
# 0.5.19 and 0.5.21 print bs=[...] on the begin line, 0.5.23 on the end line.
_GRAPH = re.compile(
    r"Capture (?P<role>target|draft) (?P<phase>prefill|decode|verify|extend) (?P<kind>\S+ graph) "
    r"(?P<edge>begin|end)\.(?P<rest>[^\n]*)"
)
_GRAPH_BS = re.compile(r"bs=\[([0-9, ]*)\]")
_ELAPSED = re.compile(r"elapsed=([0-9.]+) s")
_MEM_USAGE = re.compile(rf"mem usage={_GB}")
_BACKEND = re.compile(r"backend=([\w.]+)")

# speculative/dflash_worker_v2.py. 0.5.19: "selector decode (greedy + sampling) folded into the draft cuda graph."
_SELECTOR = re.compile(r"DFLASH selector decode (?:\(greedy \+ sampling\) )?folded into the draft cuda graph")
_SELECTOR_SAMPLING = re.compile(r"folded into the draft cuda graph \(sampling_enabled=(True|False)\)")
_HEAD_FOLDED = re.compile(r"DFLASH draft greedy head folded into the draft cuda graph \(tp=(\d+)\)")
# The selector's refusal is worded as the greedy head's.
_HEAD_EAGER = re.compile(r"DFLASH draft greedy head kept eager \(reason=(.*?)\)\.?$", re.MULTILINE)
_DRAFT_GRAPH_OFF = re.compile(r"Disable DFLASH draft cuda graph because ([^\n]+)")
_DRAFT_RUNNER = re.compile(
    r"Initialized DFLASH draft runner\. attention_backend=(\S+), model=(\w+), block_size=(\d+)"
)
_BLOCK = re.compile(
    r"DFLASH block size mismatch: using speculative_num_draft_tokens=(\d+) .*block_size=(\d+)"
)
_FUSED_KV = re.compile(r"DFLASH fused KV materialization (enabled|disabled)[.:] ?([^\n]*)")
_FALLBACK = re.compile(
    r"[^\n]*(?:fall(?:ing|s) back to|non-greedy verification is unavailable)[^\n]*", re.IGNORECASE
)

# model_executor/runner/flashinfer_autotune.py
_AUTOTUNE = re.compile(r"Running FlashInfer autotune ?(?:with cache: (\S+)|\(cache reuse DISABLED)?")
_AUTOTUNE_END = "FlashInfer autotune completed."

# flashinfer/jit/core.py (0.7.2) and layers/deep_gemm_wrapper/compile_utils.py
_JIT = re.compile(
    r"Building JIT module (\S+?);|Rebuilding JIT module (\S+?):|(Try DeepGEMM JIT Compiling[^\n]*)"
    r"|Triton kernel '(\w+)' took [0-9.]+ s to compile after serving started"
)

# model_executor/model_runner.py, mem_cache/memory_pool.py, managers/scheduler.py
_LOAD_END = re.compile(
    rf"Load weight end\. elapsed=([0-9.]+) s, type=(\w+), (?:(quant=.*?), )?avail mem={_GB}, mem usage={_GB}"
)
# Our patch P27: "LM head: method=ModelOptFp4LinearMethod, weight=uint8[2048x128], bytes=294912."
_HEAD = re.compile(r"LM head: method=(\w+), weight=(\w+)\[([0-9x]+)\], bytes=(\d+)")
_KV = re.compile(r"KV Cache (?:is allocated|VA upper bound)\. dtype: (\S+), #tokens: (\d+)")
_MAMBA = re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+)")
_POOLS = re.compile(
    r"max_total_num_tokens=(\d+), chunked_prefill_size=(\S+), max_prefill_tokens=(\S+), "
    r"max_running_requests=(\d+), context_len=(\d+)"
)

# managers/scheduler_components/metrics_reporter.py
_DECODE = re.compile(r"Decode batch(?: \[\d+\])?, #running-req: (\d+), ([^\n]*)")
_ACCEPT = re.compile(r"accept len: ([0-9.]+), accept rate: ([0-9.]+)")
_GRAPH_USED = re.compile(r"(?:cuda|cpu|npu|musa) graph: (True|False|\w+)")
_THROUGHPUT = re.compile(r"gen throughput \(token/s\): ([0-9.]+)")

# entrypoints/engine.py
_TIMINGS = re.compile(r"Engine startup timings \(s\): ([^\n]*)")
_TIMING = re.compile(r"(\w+)=([0-9.]+)")

_READY = "The server is fired up and ready to roll!"
_TRACEBACK = re.compile(r"^(?:\[[^\n]*\] )?.*Traceback \(most recent call last\):", re.MULTILINE)


@dataclass(frozen=True)
class Graph:
    """One completed capture. `seconds` and `gigabytes` as printed; `sizes` are batch sizes, empty if not printed."""

    role: str  # target | draft
    phase: str  # prefill | decode | verify | extend
    kind: str  # CUDA graph | CPU graph
    backend: str | None
    seconds: float | None
    gigabytes: float | None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decode:
    """One decode report: streams running, mean accepted tokens per step, whether a graph ran, tokens per second."""

    running: int
    accept_length: float | None
    graph: bool | None
    throughput: float | None


@dataclass
class LogFacts:
    """What one boot's log says. None and empty mean "not said", which is not the same as "no"."""

    graphs: list[Graph] = field(default_factory=list)
    graphs_unfinished: list[str] = field(default_factory=list)
    selector_folded: bool | None = None
    selector_sampling: bool | None = None
    head_folded: bool | None = None
    eager_reason: str | None = None
    draft_graph_off: str | None = None
    draft_model: str | None = None
    draft_attention: str | None = None
    block_size: int | None = None
    block_size_trained: int | None = None
    fused_kv: bool | None = None
    fused_kv_why: str | None = None
    fallbacks: list[str] = field(default_factory=list)
    autotune: str | None = None  # not run (None) | completed | unfinished
    autotune_cache: str | None = None
    compiled: list[str] = field(default_factory=list)
    model_class: str | None = None
    quantization: str | None = None
    weight_seconds: float | None = None
    weight_gigabytes: float | None = None
    head_method: str | None = None  # class of the head's quantization method
    head_dtype: str | None = None
    head_bytes: int | None = None
    kv_dtype: str | None = None
    kv_tokens: int | None = None
    mamba_slots: int | None = None
    pool_tokens: int | None = None
    running_limit: int | None = None
    context_length: int | None = None
    decodes: list[Decode] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)  # seconds of the start, by the engine's names
    ready: int = 0  # how often the engine said it was ready: more than one is a restart
    tracebacks: int = 0

    def folded(self, demanded: Collection[str]) -> bool | None:
        """Whether what a preset's fast_path wants in the draft's graph is there (DFlash2's selector, DFlash1's head)."""
        return self.selector_folded if "selector-in-graph" in demanded else self.head_folded


def parse_log(text: str) -> LogFacts:
    """Read a log, of one boot or of several: facts of the last boot win, counts cover all."""
    f = LogFacts(ready=text.count(_READY), tracebacks=len(_TRACEBACK.findall(text)))
    _graphs(text, f)
    _speculation(text, f)
    _kernels(text, f)
    _pools(text, f)
    if m := _last(_TIMINGS, text):
        f.timings = {name: float(value) for name, value in _TIMING.findall(m[1])}
    f.decodes = [_decode(m) for m in _DECODE.finditer(text)]
    return f


def _graphs(text: str, f: LogFacts) -> None:
    begun: dict[tuple[str, str], re.Match[str]] = {}
    for m in _GRAPH.finditer(text):
        key = (m["role"], m["phase"])
        if m["edge"] == "begin":
            begun[key] = m
            continue
        start = begun.pop(key, None)
        both = (start["rest"] if start else "") + " " + m["rest"]
        sizes = _GRAPH_BS.search(both)
        backend = _BACKEND.search(both)
        f.graphs.append(
            Graph(
                m["role"],
                m["phase"],
                m["kind"],
                backend[1] if backend else None,
                _num(_ELAPSED.search(m["rest"])),
                _num(_MEM_USAGE.search(m["rest"])),
                tuple(int(s) for s in sizes[1].split(",") if s.strip()) if sizes else (),
            )
        )
    f.graphs_unfinished = [f"{role} {phase}" for role, phase in begun]


def _speculation(text: str, f: LogFacts) -> None:
    if _SELECTOR.search(text):
        f.selector_folded = True
        if s := _SELECTOR_SAMPLING.search(text):
            f.selector_sampling = s[1] == "True"
    if _HEAD_FOLDED.search(text):
        f.head_folded = True
    if m := _last(_HEAD_EAGER, text):
        f.eager_reason = m[1]
        f.head_folded = f.selector_folded = False
    if m := _last(_DRAFT_GRAPH_OFF, text):
        f.draft_graph_off = m[1]
    if m := _last(_DRAFT_RUNNER, text):
        f.draft_attention, f.draft_model, f.block_size = m[1], m[2], int(m[3])
    if m := _last(_BLOCK, text):
        f.block_size_trained = int(m[2])
    if m := _last(_FUSED_KV, text):
        f.fused_kv = m[1] == "enabled"
        f.fused_kv_why = m[2] or None
    f.fallbacks = [m.group(0).strip() for m in _FALLBACK.finditer(text) if "DFLASH" in m.group(0).upper()]


def _kernels(text: str, f: LogFacts) -> None:
    if m := _last(_AUTOTUNE, text):
        f.autotune_cache = m[1]
        f.autotune = "completed" if _AUTOTUNE_END in text[m.end() :] else "unfinished"
    f.compiled = [next(g for g in m.groups() if g) for m in _JIT.finditer(text)]


def _pools(text: str, f: LogFacts) -> None:
    # The draft's weights load after the target's; the target comes first.
    if m := _LOAD_END.search(text):
        f.weight_seconds, f.model_class, f.quantization = float(m[1]), m[2], m[3]
        f.weight_gigabytes = float(m[5])
    if m := _HEAD.search(text):
        f.head_method, f.head_dtype, f.head_bytes = m[1], m[2], int(m[4])
    if m := _KV.search(text):
        f.kv_dtype, f.kv_tokens = m[1].removeprefix("torch."), int(m[2])
    if m := _MAMBA.search(text):
        f.mamba_slots = int(m[1])
    if m := _last(_POOLS, text):
        f.pool_tokens, f.running_limit, f.context_length = int(m[1]), int(m[4]), int(m[5])


def _decode(m: re.Match[str]) -> Decode:
    rest = m[2]
    accept = _ACCEPT.search(rest)
    graph = _GRAPH_USED.search(rest)
    return Decode(
        int(m[1]),
        float(accept[1]) if accept else None,
        None if graph is None else graph[1] != "False",
        _num(_THROUGHPUT.search(rest)),
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007
        pass
    return found


def _num(m: re.Match[str] | None) -> float | None:
    return float(m[1]) if m else None
