"""The memory plan against figures others published: the tables of docs/memory.md. `python -m launch.plantable`.

Each published pool gives a token count and some of the flags. What is not published is either the engine's
default or inferred, and the row says so; the free memory before loading is fitted once per machine. A row that
the model cannot reproduce stays in the table with its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.errors import CheckFailed
from launch.files import write_text
from launch.plan import (
    GIB,
    MM_RESERVE,
    RUNTIME,
    Request,
    full_memory_ratio,
    kv_bytes,
    size_pools,
    state_bytes,
)
from launch.preset import Geometry

# Qwen3.8-27B and Qwen3.6-27B (facts 2.4, "derived, exact").
QWEN_27B = Geometry(
    layers=64,
    hidden_size=5120,
    vocab_size=248_320,
    native_context=262_144,
    attention_layers=16,
    kv_heads=4,
    head_dim=256,
    linear_layers=48,
    linear_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    conv_channels=10_240,
    conv_states=3,
)
NVFP4, BF16_DRAFT, NVFP4_DRAFT, FP8 = 21_921_697_280, 3_848_817_896, 1_550_153_248, 30_900_000_000
DOC = Path(__file__).resolve().parent.parent / "docs" / "memory.md"


@dataclass(frozen=True)
class Published:
    """One published pool size and the flags it was seen with."""

    by: str
    what: str
    fraction: float
    tokens: int
    weights: int
    free_gib: float
    kv: str
    ssm: str
    strategy: str
    ratio: float
    draft_tokens: int
    running: int | None
    draft_cell: int  # bytes of a token in the draft's pool
    runtime: int = RUNTIME
    note: str = ""


def _pangoleen(fraction: float, running: int, tokens: int) -> Published:
    return Published(
        by="pangoleen", what=f"NVFP4 + NVFP4 draft 16, {running} running", fraction=fraction, tokens=tokens,
        weights=NVFP4 + NVFP4_DRAFT, free_gib=114.0, kv="bf16", ssm="bfloat16", strategy="extra_buffer", ratio=11.93,
        draft_tokens=16, running=running, draft_cell=20_480,
    )  # fmt: skip


def _r0b0tlab(fraction: float, tokens: int) -> Published:
    # The day-0 build scales the target's cell by the layer count: 32,768 x 21 / 16 = 43,008 B.
    return Published(
        by="r0b0tlab", what="NVFP4 + BF16 draft 8", fraction=fraction, tokens=tokens, weights=NVFP4 + BF16_DRAFT,
        free_gib=109.0, kv="fp8_e4m3", ssm="float32", strategy="extra_buffer", ratio=4.59, draft_tokens=8, running=48,
        draft_cell=10_240, note="weights taken as RadixArk's; 48 running, fp32 states are the engine's defaults",
    )  # fmt: skip


def _robbiemu(fraction: float, tokens: int) -> Published:
    return Published(
        by="robbiemu", what="Qwen3.6 FP8, no draft", fraction=fraction, tokens=tokens, weights=FP8, free_gib=115.0,
        kv="bf16", ssm="float32", strategy="no_buffer", ratio=0.9, draft_tokens=0, running=None, draft_cell=0,
        runtime=200_000_000, note="flags not published: engine defaults; weights and runtime fitted together",
    )  # fmt: skip


PUBLISHED = (
    _pangoleen(0.65, 4, 413_460),
    _pangoleen(0.65, 16, 238_605),
    _pangoleen(0.65, 32, 49_958),
    _pangoleen(0.80, 32, 173_120),
    _r0b0tlab(0.70, 234_240),
    _r0b0tlab(0.73, 262_611),
    _robbiemu(0.40, 148_192),
    _robbiemu(0.50, 245_748),
    _robbiemu(0.60, 346_485),
)
# Published ratios: strategy, draft tokens, value (facts 2.4; fp32 states, FP8 KV, requests of 9,216 tokens).
RATIOS = (
    ("jhgoodwin, no draft", "extra_buffer", 0, 2.55),
    ("jhgoodwin, DFlash2 8", "extra_buffer", 8, 6.63),
    ("jhgoodwin, DFlash2 8, lazy", "extra_buffer_lazy", 8, 6.12),
    ("r0b0tlab, EAGLE value reused for DFlash2", "extra_buffer", 4, 4.59),
)


def predicted(p: Published) -> int:
    """Tokens the model gives for the flags of a published pool."""
    q = Request(
        fraction=p.fraction, kv_dtype=p.kv, draft_kv_dtype=p.kv, ssm_dtype=p.ssm, strategy=p.strategy, ratio=p.ratio,
        mamba_slots=None, max_running=p.running, running_asked=True, max_tokens=None,
        context=QWEN_27B.native_context, chunk=2048, prefill_graph=False, draft_tokens=p.draft_tokens, request_tokens=9216,
    )  # fmt: skip
    budget = int(p.free_gib * GIB * p.fraction) - p.weights - p.runtime - MM_RESERVE
    cell = kv_bytes(QWEN_27B, p.kv) + p.draft_cell
    return size_pools(budget, q, state=state_bytes(QWEN_27B, p.ssm), cell=cell, ratio=p.ratio).tokens


def error(p: Published) -> float:
    """Relative error of the prediction."""
    return predicted(p) / p.tokens - 1


def pools_table() -> str:
    """Markdown: published pools and what the model gives."""
    rows = ["| who | what | fraction | published | model | error | free GiB (fitted) |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip
    for p in PUBLISHED:
        mark = " *" if p.note else ""
        rows.append(
            f"| {p.by}{mark} | {p.what} | {p.fraction:.2f} | {p.tokens:,} | {predicted(p):,} "
            f"| {100 * error(p):+.1f} % | {p.free_gib:g} |"
        )
    notes = {p.by: p.note for p in PUBLISHED if p.note}
    return "\n".join([*rows, "", *(f"\\* {by}: {note}.  " for by, note in notes.items())])


def ratios_table() -> str:
    """Markdown: published ratios and what the formula gives."""
    rows = ["| who | S | D | published | formula |", "|---|---|---|---|---|"]
    slots = {"extra_buffer": 5, "extra_buffer_lazy": 4}
    for who, strategy, d, value in RATIOS:
        got = full_memory_ratio(
            QWEN_27B, ssm_dtype="float32", kv_dtype="fp8_e4m3", strategy=strategy, draft_tokens=d
        )
        rows.append(f"| {who} | {slots[strategy]} | {d} | {value} | {got} |")
    return "\n".join(rows)


def render(text: str) -> str:
    """`text` with what stands between the markers replaced by the tables."""
    for name, content in (("ratios", ratios_table()), ("pools", pools_table())):
        begin, end = f"<!-- {name}: generated -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise CheckFailed(f"docs/memory.md has lost its markers {begin.strip()} and {end}; restore them")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def main() -> None:
    """Write the tables into docs/memory.md."""
    write_text(DOC, render(DOC.read_text("utf-8")))


if __name__ == "__main__":
    main()
