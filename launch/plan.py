"""plan(Resolved, facts) -> MemoryPlan: every term of the memory a preset will take. Pure.

The sizing follows SGLang 0.5.23 (mem_cache/kv_cache_configurator.py `_profile_available_bytes` and
`_handle_max_mamba_cache`): what `mem_fraction_static` leaves after the weights is split between recurrent
states and KV pool by `mamba_full_memory_ratio`. Terms the engine does not size (graphs, activations, what the host needs
on a unified machine) must fit into the rest. All figures are bytes unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launch.errors import ConfigError
from launch.preset import COMPUTED, Geometry
from launch.resolve import Resolved

GIB = 1 << 30
MIB = 1 << 20

WIDTH = {"fp8_e4m3": 1, "fp8_e5m2": 1, "mxfp8": 33 / 32, "bf16": 2, "bfloat16": 2, "nvfp4": 9 / 16}
STATE_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
CONV_WIDTH = 2  # the convolution window stays in bfloat16
SLOTS = {"extra_buffer": 5, "extra_buffer_lazy": 4, "no_buffer": 3, "radix_off": 1}
ENGINE_RATIO = 0.9  # the engine's fallback for mamba_full_memory_ratio
SPEC_MAX_RUNNING = 48  # the engine's cap under speculation when none is set
MM_RESERVE = 100 * MIB  # SGLANG_VLM_CACHE_SIZE_MB
RUNTIME = 2_600_000_000  # besides weights, on a GB10: fitted (docs/memory.md); others in models/machines.toml
PREFILL_GRAPHS = 1_800_000_000  # about 1.8 GB for 42-51 buckets (sglang #33852, upstream-gaps B2.8)
TRANSIENT_BASE = 256 * MIB
TRANSIENT_PER_TOKEN = MIB // 2  # of a prefill chunk, at a hidden size of 5120
FRACTION_STEP = 0.01


@dataclass(frozen=True)
class PlanFacts:
    """What the plan is told about weights and machine. `assumed` lists what no source states."""

    weight_bytes: int
    total_bytes: int
    free_bytes: int
    unified: bool
    draft_bytes: int = 0
    draft_layers: int = 0
    draft_kv_heads: int = 0
    draft_head_dim: int = 0
    weight_source: str = ""
    draft_source: str = ""
    machine_source: str = ""
    assumed: tuple[str, ...] = ()
    kv_declared: str | None = None  # what the checkpoint declares; followed when the preset says auto
    ssm_declared: str | None = None
    runtime_bytes: int = RUNTIME


@dataclass(frozen=True)
class Term:
    """One line of the plan."""

    name: str
    size: int
    formula: str
    source: str


@dataclass(frozen=True)
class Knob:
    """A change that would make the plan fit."""

    key: str
    now: Any
    to: Any

    def __str__(self) -> str:
        return f"{self.key} = {self.to} (now {self.now})"


@dataclass(frozen=True)
class MemoryPlan:
    """The plan. `problems` make it not fit; `warnings` are worth reading. Tokens are KV-pool tokens."""

    slug: str
    terms: tuple[Term, ...]
    fraction: float
    fraction_max: float
    ratio: float
    ratio_balanced: float
    state_slots: int
    slots_per_request: int
    concurrency: int
    pool_tokens: int
    longest_context: int
    kv_bytes_per_token: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    assumed: tuple[str, ...]
    knobs: tuple[Knob, ...] = ()

    @property
    def mend(self) -> str:
        """What would make it fit, for a message; empty when nothing in the preset would."""
        return " and ".join(str(k) for k in self.knobs)

    @property
    def fits(self) -> bool:
        """Whether the engine would start with what was asked, and the host would keep breathing."""
        return not self.problems


def state_bytes(g: Geometry, ssm_dtype: str) -> int:
    """Bytes of one recurrent-state slot: all linear layers, state matrix and convolution window."""
    matrix = g.linear_value_heads * g.linear_value_head_dim * g.linear_key_head_dim * STATE_WIDTH[ssm_dtype]
    return g.linear_layers * (matrix + g.conv_channels * g.conv_states * CONV_WIDTH)


def kv_bytes(g: Geometry, kv_dtype: str) -> int:
    """Bytes of one token in the target's KV pool: keys and values of the attention layers."""
    return math.ceil(2 * g.attention_layers * g.kv_heads * g.head_dim * WIDTH[kv_dtype])


def full_memory_ratio(
    g: Geometry,
    *,
    ssm_dtype: str,
    kv_dtype: str,
    strategy: str,
    draft_tokens: int,
    request_tokens: int = 9216,
) -> float:
    """`mamba_full_memory_ratio` that runs states and KV pool dry together, to two decimals.

    (S + D) x state bytes / KV bytes per token / average request length: SGLang's published rule (facts 2.4),
    with S slots per request by `strategy` and D `draft_tokens` (0 without a draft).
    """
    slots = SLOTS[strategy] + draft_tokens
    return round(slots * state_bytes(g, ssm_dtype) / kv_bytes(g, kv_dtype) / request_tokens, 2)


@dataclass(frozen=True)
class Request:
    """The engine keys the plan depends on, resolved as the engine would."""

    fraction: float | None
    kv_dtype: str
    draft_kv_dtype: str
    ssm_dtype: str
    strategy: str
    ratio: float | str | None
    mamba_slots: int | None
    max_running: int | None
    running_asked: bool  # the preset set it; otherwise it is the engine's default
    max_tokens: int | None
    context: int
    chunk: int
    prefill_graph: bool
    draft_tokens: int
    request_tokens: int

    @property
    def slots(self) -> int:
        """State slots the engine sets aside per running request."""
        return SLOTS[self.strategy]


def read_request(r: Resolved, facts: PlanFacts) -> Request:
    """The keys of a resolved preset, defaults filled in as the engine fills them."""
    e, draft = r.engine, r.preset.draft
    geometry = r.preset.target.geometry
    if geometry is None:
        raise ConfigError(
            f"{r.preset.name}: target.geometry is missing; the memory plan needs the target's shapes"
        )
    asked = str(e.get("kv_cache_dtype", "auto"))
    kv = asked if asked != "auto" else facts.kv_declared or "bf16"
    if kv not in WIDTH:
        raise ConfigError(f"engine.kv_cache_dtype = {kv!r} is unknown to the plan; known: {', '.join(WIDTH)}")
    # With `auto` the engine sizes the draft's pool before it knows what the checkpoint declares: BF16.
    draft_kv = str(e.get("speculative_draft_kv_cache_dtype", asked if asked != "auto" else "bf16"))
    if bool(e.get("disable_radix_cache")):
        strategy = "radix_off"
    else:
        strategy = str(e.get("mamba_radix_cache_strategy", "auto"))
        if strategy == "auto":
            strategy = "no_buffer" if e.get("disable_overlap_schedule") else "extra_buffer"
    running = _int(e.get("max_running_requests"))
    spec = draft is not None
    return Request(
        fraction=float(f) if (f := e.get("mem_fraction_static")) is not None else None,  # type: ignore[arg-type]
        kv_dtype=kv,
        draft_kv_dtype=draft_kv if draft_kv in WIDTH else "bf16",
        ssm_dtype=str(e.get("mamba_ssm_dtype") or facts.ssm_declared or "float32"),
        strategy=strategy,
        ratio=e.get("mamba_full_memory_ratio"),  # type: ignore[arg-type]
        mamba_slots=_int(e.get("max_mamba_cache_size")),
        max_running=running if running is not None else SPEC_MAX_RUNNING if spec else None,
        running_asked=running is not None,
        max_tokens=_int(e.get("max_total_tokens")),
        context=_int(e.get("context_length")) or geometry.native_context,
        chunk=_int(e.get("chunked_prefill_size")) or 8192,
        prefill_graph=not e.get("disable_prefill_cuda_graph") and r.machine.name != "cpu",
        draft_tokens=draft.tokens if draft is not None else 0,
        request_tokens=r.preset.memory.request_tokens,
    )


def _int(value: Any) -> int | None:
    return int(value) if value is not None else None


@dataclass(frozen=True)
class Pools:
    """What the engine makes of a budget: state slots K, running requests, KV tokens, and their bytes."""

    slots: int
    running: int
    tokens: int
    state: int
    scratch: int
    budget: int


def size_pools(budget: int, q: Request, *, state: int, cell: int, ratio: float) -> Pools:
    """The engine's split of `budget` bytes (after weights) into states, verify scratch and KV pool.

    `state`: bytes per slot (0 for a model without recurrent layers), `cell`: bytes per KV token of target and
    draft. Both state buffers have one padding slot. Verify keeps one state per draft token per running request.
    """
    d = q.draft_tokens
    limit = q.max_running if q.max_running is not None else 2048
    if state == 0:
        tokens = max(0, budget) // cell
        return Pools(0, min(limit, tokens // 2), tokens, 0, 0, budget)
    if q.mamba_slots is not None:
        k = q.mamba_slots
    elif q.strategy == "radix_off" and q.max_running is not None:
        k = q.max_running
    else:
        share = budget * ratio / (1 + ratio)
        k = int((share - state * (1 + d)) // (state * (1 + d / q.slots)))
    running = max(0, min(limit, k // q.slots))
    scratch = (running + 1) * d * state if d else 0
    tokens = (budget - scratch - (k + 1) * state) // cell
    return Pools(k, running, max(0, tokens), (k + 1) * state, scratch, budget)


def plan(r: Resolved, facts: PlanFacts) -> MemoryPlan:
    """The memory plan of a resolved preset. Does not raise when it does not fit: see `problems` and `knobs`."""
    q = read_request(r, facts)
    first = _plan(r, facts, q)
    if first.fits:
        return first
    return replace(first, knobs=_nearest_knobs(r, facts, q, first))


def _plan(r: Resolved, facts: PlanFacts, q: Request) -> MemoryPlan:
    g = r.preset.target.geometry
    assert g is not None
    state, cell = state_bytes(g, q.ssm_dtype), kv_bytes(g, q.kv_dtype)
    draft_cell = math.ceil(
        2 * facts.draft_layers * facts.draft_kv_heads * facts.draft_head_dim * WIDTH[q.draft_kv_dtype]
    )
    balanced = full_memory_ratio(
        g, ssm_dtype=q.ssm_dtype, kv_dtype=q.kv_dtype, strategy=q.strategy,
        draft_tokens=q.draft_tokens, request_tokens=q.request_tokens,
    )  # fmt: skip
    ratio = balanced if q.ratio == COMPUTED else ENGINE_RATIO if q.ratio is None else float(q.ratio)
    outside = _outside(q, facts, g)
    needed = sum(t.size for t in outside)
    fraction_max = math.floor((1 - needed / facts.free_bytes) / FRACTION_STEP + 1e-9) * FRACTION_STEP
    fraction = q.fraction if q.fraction is not None else max(0.0, round(fraction_max, 2))
    loaded = facts.weight_bytes + facts.draft_bytes + facts.runtime_bytes + MM_RESERVE
    budget = int(facts.free_bytes * fraction) - loaded
    pools = size_pools(budget, q, state=state, cell=cell + draft_cell, ratio=ratio)
    tokens = min(pools.tokens, q.max_tokens) if q.max_tokens else pools.tokens
    terms = [Term("target weights", facts.weight_bytes, "sum of the safetensors files", facts.weight_source)]
    if facts.draft_bytes:
        terms.append(Term("draft weights", facts.draft_bytes, terms[0].formula, facts.draft_source))
    terms += [
        Term(
            "runtime",
            facts.runtime_bytes,
            "what loading takes besides weights",
            "models/machines.toml, docs/memory.md",
        ),
        Term("multimodal cache", MM_RESERVE, "SGLANG_VLM_CACHE_SIZE_MB", "engine 0.5.23"),
    ]
    if state:
        terms += [
            Term("recurrent states", pools.state, f"({pools.slots} slots + 1) x {state:,} B ({q.ssm_dtype})",
                 f"engine 0.5.23; S = {q.slots} slots a request ({q.strategy})"),
            Term("verify scratch", pools.scratch, f"({pools.running} requests + 1) x D = {q.draft_tokens} x {state:,} B",
                 "engine 0.5.23: one state per draft token"),
        ]  # fmt: skip
    terms += [
        Term("kv pool", tokens * (cell + draft_cell),
             f"{tokens:,} tokens x ({cell:,} B {q.kv_dtype} + {draft_cell:,} B draft)", "engine 0.5.23"),
        *outside,
    ]  # fmt: skip
    problems = _problems(
        facts, q, pools, fraction=fraction, fraction_max=fraction_max, tokens=tokens, loaded=loaded
    )
    return MemoryPlan(
        slug=r.slug, terms=tuple(terms), fraction=round(fraction, 4), fraction_max=round(max(0.0, fraction_max), 2),
        ratio=ratio, ratio_balanced=balanced, state_slots=pools.slots, slots_per_request=q.slots if state else 0,
        concurrency=pools.running, pool_tokens=tokens, longest_context=min(q.context, tokens),
        kv_bytes_per_token=cell + draft_cell, problems=tuple(problems),
        warnings=tuple(
            _warnings(q, pools, tokens=tokens, ratio=ratio, balanced=balanced, hybrid=bool(state))
        ), assumed=facts.assumed,
    )  # fmt: skip


def _outside(q: Request, facts: PlanFacts, g: Geometry) -> list[Term]:
    """What must fit beside the static share: graphs, activations, sampling buffers, the host."""
    running = q.max_running if q.max_running is not None else 32
    terms = []
    if q.prefill_graph:
        source = "sglang #33852; disable_prefill_cuda_graph saves it"
        terms.append(Term("prefill graphs", PREFILL_GRAPHS, "42-51 buckets", source))
    chunk = TRANSIENT_BASE + q.chunk * TRANSIENT_PER_TOKEN * g.hidden_size // 5120
    formula = f"256 MiB + chunk {q.chunk} x 0.5 MiB x hidden {g.hidden_size} / 5120"
    terms.append(Term("activations", chunk, formula, "assumed; a third of the engine's own reserve"))
    if q.draft_tokens:
        rows = 2 * q.draft_tokens - 1
        formula = f"{running} requests x (2D - 1 = {rows}) x vocabulary x 4 B"
        terms.append(Term("draft sampling", running * rows * g.vocab_size * 4, formula, "upstream-gaps B3.5"))
    if facts.unified:
        host = max(16 * GIB, int(0.15 * facts.total_bytes))
        source = "upstream-gaps P13; at 0.85 earlyoom killed 15 of 48 cells (sglang #35825)"
        terms.append(Term("host", host, "max(16 GiB, 15 % of memory)", source))
    return terms


def _problems(
    facts: PlanFacts,
    q: Request,
    pools: Pools,
    *,
    fraction: float,
    fraction_max: float,
    tokens: int,
    loaded: int,
) -> list[str]:
    out = []
    if fraction > fraction_max + 1e-9:
        left = facts.free_bytes * (1 - fraction)
        out.append(
            f"mem_fraction_static {fraction:g} leaves {left / GIB:.1f} of {facts.free_bytes / GIB:.1f} GiB for graphs, "
            f"activations{' and the host' if facts.unified else ''}; at most {max(0.0, fraction_max):.2f} is safe"
        )
    if pools.budget <= 0:
        out.append(
            f"weights and runtime take {loaded / GIB:.1f} GiB, the static share is only "
            f"{facts.free_bytes * fraction / GIB:.1f} GiB"
        )
    elif pools.slots < 0 or (pools.state and pools.running < 1):
        out.append(f"{max(0, pools.slots)} state slots are fewer than the {q.slots} one request needs")
    elif tokens < min(q.request_tokens, q.context):
        out.append(
            f"the KV pool holds {tokens:,} tokens, less than one request of {min(q.request_tokens, q.context):,}"
        )
    return out


def _warnings(
    q: Request, pools: Pools, *, tokens: int, ratio: float, balanced: float, hybrid: bool
) -> list[str]:
    out = []
    if tokens < q.context:
        out.append(
            f"the pool holds {tokens:,} tokens: one request of context_length {q.context:,} does not fit"
        )
    if q.running_asked and q.max_running is not None and pools.running < q.max_running:
        out.append(
            f"max_running_requests {q.max_running} will be clamped to {pools.running} by the state slots"
        )
    if hybrid and q.mamba_slots is None and q.strategy != "radix_off" and not 0.5 <= ratio / balanced <= 2:
        out.append(
            f"mamba_full_memory_ratio {ratio:g} is far from the balanced {balanced:g} for requests of "
            f"{q.request_tokens:,} tokens: one pool runs dry while the other stands empty"
        )
    return out


def _nearest_knobs(r: Resolved, facts: PlanFacts, q: Request, now: MemoryPlan) -> tuple[Knob, ...]:
    """The first change, gentlest first, with which the plan fits: one key, or one and the fraction."""
    key = "engine.mem_fraction_static"
    candidates: list[tuple[Request, tuple[Knob, ...]]] = [(q, ())]
    for running in _descending(q.max_running):
        knob = Knob("engine.max_running_requests", q.max_running, running)
        candidates.append((replace(q, max_running=running), (knob,)))
    if q.prefill_graph:
        knob = Knob("engine.disable_prefill_cuda_graph", False, True)
        candidates.append((replace(q, prefill_graph=False), (knob,)))
    if q.chunk > 2048:
        candidates.append((replace(q, chunk=2048), (Knob("engine.chunked_prefill_size", q.chunk, 2048),)))
    if q.ssm_dtype == "float32":
        knob = Knob("engine.mamba_ssm_dtype", "float32", "bfloat16")
        candidates.append((replace(q, ssm_dtype="bfloat16"), (knob,)))
    if WIDTH[q.kv_dtype] > 1:
        knob = Knob("engine.kv_cache_dtype", q.kv_dtype, "fp8_e4m3")
        candidates.append((replace(q, kv_dtype="fp8_e4m3", draft_kv_dtype="fp8_e4m3"), (knob,)))
    if q.mamba_slots is not None and q.mamba_slots < q.slots:
        knob = Knob("engine.max_mamba_cache_size", q.mamba_slots, q.slots)
        candidates.append((replace(q, mamba_slots=q.slots), (knob,)))
    for tokens in _descending(q.draft_tokens or None):
        knob = Knob("draft.tokens", q.draft_tokens, tokens)
        candidates.append((replace(q, draft_tokens=tokens), (knob,)))
    for context in [c for c in _descending(q.context) if c >= 1024]:
        candidates.append((replace(q, context=context), (Knob("engine.context_length", q.context, context),)))
    for changed, knobs in candidates:
        if knobs and _plan(r, facts, changed).fits:
            return knobs
        best = _plan(r, facts, replace(changed, fraction=None))
        if best.fits and best.fraction != q.fraction:
            return (*knobs, Knob(key, now.fraction, best.fraction))
    return ()


def _descending(value: int | None) -> list[int]:
    """Halvings of `value` down to 1, without `value` itself."""
    out: list[int] = []
    while value is not None and value > 1:
        value //= 2
        out.append(value)
    return out


def as_json(p: MemoryPlan) -> Mapping[str, Any]:
    """The plan as plain data."""
    from dataclasses import asdict

    return {**asdict(p), "fits": p.fits}
