"""Fast path: the engine runs as fast as this pair can, and did not fall back to a slow way without saying so.

Read from the log, /server_info and metrics through one parser (smoke/engine). What the preset lists under
smoke.fast_path is demanded; the rest is demanded where it can be told.
"""

from __future__ import annotations

import pytest

from smoke.engine.log import LogFacts
from smoke.errors import expect
from smoke.session import Session

pytestmark = pytest.mark.needs("log")

PACKED = ("NVFP4", "W4A16_NVFP4", "FP8")  # what a preset's target.expects.lm_head may call a packed head
DENSE = ("bfloat16", "float16", "float32")


def _log(s: Session) -> LogFacts:
    assert s.facts.log is not None
    return s.facts.log


IN_GRAPH = {"selector-in-graph", "head-in-graph"}


def _demanded(s: Session, name: str) -> None:
    s.need(name in s.subject.fast_path, f"the preset does not list {name} under smoke.fast_path")


@pytest.mark.needs("gpu")
def test_target_graph(s: Session) -> None:
    """The target's step is a captured CUDA graph"""
    f = _log(s)
    expect(
        "fast.unfinished",
        not f.graphs_unfinished,
        f"graph capture began but did not end: {', '.join(f.graphs_unfinished)}",
        "look for an error after 'Capture ... begin' in the log",
    )
    want = ("verify",) if s.facts.speculative else ("decode",)
    expect(
        "fast.target_graph",
        set(want) & set(s.facts.captured("target")),
        f"the target's {want[0]} graph was not captured (captured: {s.facts.captured('target') or 'none'})",
        "remove disable_cuda_graph; if memory ran out at capture, lower cuda_graph_max_bs_decode",
    )


@pytest.mark.needs("gpu", "speculative")
def test_draft_graph(s: Session) -> None:
    """The draft is a captured CUDA graph"""
    why = _log(s).draft_graph_off
    expect(
        "fast.draft_graph_off",
        why is None,
        f"the engine gave up the draft's graph: {why}",
        "leave more memory free after the target: lower mem_fraction_static",
    )
    expect(
        "fast.draft_graph",
        s.facts.captured("draft"),
        "the draft's graph was not captured",
        "look for 'Capture draft' in the log; the draft then runs eagerly, at a fraction of its speed",
    )


@pytest.mark.needs("gpu", "speculative")
def test_selector_in_graph(s: Session) -> None:
    """The draft's choice (DFlash2's selector, DFlash1's greedy head) is folded into its graph"""
    s.need(
        IN_GRAPH & set(s.subject.fast_path),
        f"the preset lists none of {', '.join(sorted(IN_GRAPH))} under smoke.fast_path",
    )
    f = _log(s)
    expect(
        "fast.eager",
        f.eager_reason is None,
        f"the draft's head was kept eager (reason={f.eager_reason})",
        "a quantized head needs an engine that folds it: check the patch series (sparkserve provenance)",
    )
    expect(
        "fast.selector",
        f.folded(s.subject.fast_path),
        "no line says that the selector or the greedy head was folded into the draft graph",
        "is the draft of the class the preset names, and flashinfer installed? Compare draft model in the report",
    )


@pytest.mark.needs("gpu", "preset")
def test_quantized_head(s: Session) -> None:
    """The target's head stays quantized"""
    _demanded(s, "quantized-head")
    f = _log(s)
    expect(
        "fast.head_dense",
        "head" not in (f.eager_reason or ""),
        f"the engine handles the head as a special case (reason={f.eager_reason})",
        "use the engine version of the preset; a head dequantized to BF16 costs 2.5 to 5 GB at capture",
    )
    expect(
        "fast.head_quant",
        s.facts.quantization,
        "the engine does not say that the target is quantized",
        "check that the checkpoint's hf_quant_config.json is there (sparkserve check PRESET)",
    )


@pytest.mark.needs("preset")
def test_head_as_held(s: Session) -> None:
    """The head is in memory as packed as it is in the checkpoint"""
    packed = s.subject.head in PACKED
    s.need(s.subject.head, "the preset does not say how the head is quantized")
    f = _log(s)
    s.need(f.head_dtype, "the engine does not say how it holds its head (patch P27)", matters=packed)
    dense = f.head_dtype in DENSE
    expect(
        "fast.head_held",
        dense is not packed,
        f"the preset's head is {s.subject.head}, the engine holds {f.head_dtype} by {f.head_method}, {f.head_bytes} bytes",
        "a head unpacked to BF16 costs 2.5 to 5 GB and says so nowhere else: check the patch series and the checkpoint",
    )


@pytest.mark.needs("preset", "speculative")
def test_draft_quantization(s: Session) -> None:
    """The draft's quantization is the declared one"""
    want = s.subject.draft_quantization
    s.need(want, "the preset does not declare the draft's quantization")
    have = s.facts.draft_quantization or "unquant"
    expect(
        "fast.draft_quant",
        have == want,
        f"the preset declares {want} for the draft, the engine uses {have}",
        "a draft that inherits the target's quantization loads and then accepts nothing: state it explicitly",
    )


@pytest.mark.needs("preset")
def test_kv_dtype(s: Session) -> None:
    """The KV cache has the preset's dtype"""
    want = "fp8_e4m3" if "fp8-kv" in s.subject.fast_path else s.subject.engine.get("kv_cache_dtype")
    want = {"bf16": "bfloat16"}.get(str(want), want)
    s.need(want and want != "auto", "the preset leaves the KV dtype to the checkpoint")
    if s.facts.on_cpu:  # the CPU engine has no FP8 KV without AMX; its own flags say bf16
        want = "bfloat16"
    expect(
        "fast.kv_dtype",
        s.facts.kv_dtype == want,
        f"the KV cache should be {want}, it is {s.facts.kv_dtype}",
        "pass kv_cache_dtype explicitly: a checkpoint without a KV scheme falls back to BF16, half the pool",
    )


@pytest.mark.needs("preset", "gpu")
def test_backends(s: Session) -> None:
    """Attention and GEMM backends are the preset's"""
    asked = {
        k: v for k, v in s.subject.engine.items() if k.endswith(("attention_backend", "gemm_backend")) and v
    }
    asked = {k: v for k, v in asked.items() if v != "auto"}
    s.need(asked, "the preset leaves the backends to the engine")
    f = s.facts
    attention = {
        "attention_backend": f.attention,
        "prefill_attention_backend": f.prefill_attention,
        "decode_attention_backend": f.decode_attention,
        "speculative_draft_attention_backend": _log(s).draft_attention,
    }
    for key, want in asked.items():
        if key in attention and attention[key] is not None:
            expect(
                "fast.attention",
                attention[key] == want,
                f"{key} should be {want}, the engine chose {attention[key]}",
                "this GPU or model may not support it: the log says why",
            )
        elif key.endswith("gemm_backend") and f.gemm:
            expect(
                "fast.gemm",
                any(g.endswith(f"={want}") for g in f.gemm),
                f"{key} should be {want}, the engine says {', '.join(f.gemm)}",
                "this GPU may not have it: the log says why",
            )


@pytest.mark.needs("gpu", "speculative")
def test_no_fallback(s: Session) -> None:
    """No part of the draft's path fell back to a slower one"""
    lines = _log(s).fallbacks
    expect(
        "fast.fallback",
        not lines,
        f"the engine fell back: {' | '.join(lines)[:300]}",
        "the line names the cause; a missing kernel means an incomplete prebuild",
    )


@pytest.mark.needs("gpu")
def test_autotune_ended(s: Session) -> None:
    """FlashInfer's autotuning, where it ran, completed"""
    f = _log(s)
    s.need(f.autotune, "no autotuning ran")
    expect(
        "fast.autotune",
        f.autotune == "completed",
        "FlashInfer autotuning began and did not complete",
        "it runs after the KV pool is taken and can run out of memory: disable_flashinfer_autotune = true",
    )


@pytest.mark.needs("gpu")
def test_decode_uses_graph(s: Session) -> None:
    """Decoding really ran from a graph"""
    # The engine reports every 40th step, and a step makes up to as many tokens as are drafted.
    s.engine.generate("One, two, three,", min(60 * (s.facts.draft_tokens or 1), s.context // 2))
    decodes = s.fresh_facts().log
    seen = [d.graph for d in (decodes.decodes if decodes else []) if d.graph is not None]
    s.need(seen, "the engine logged no decode batch yet")
    expect(
        "fast.graph_used",
        any(seen),
        "every logged decode batch says 'cuda graph: False'",
        "batch sizes above cuda_graph_max_bs_decode run eagerly: raise it",
    )
