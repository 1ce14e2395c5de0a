"""Recorded and transcribed logs of several SGLang versions give the facts that they say, and nothing they do not."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from smoke.engine import log as log_module
from smoke.engine.facts import gather
from smoke.engine.log import LogFacts, parse_log
from smoke.engine.metrics import parse_metrics
from smoke.mock.boot import LOGS


def read(name: str) -> str:
    return next(LOGS.glob(f"{name}*.log")).read_text()


def facts(name: str) -> LogFacts:
    return parse_log(read(name))


def test_0_5_23_dflash2() -> None:
    f = facts("0.5.23-dflash2-transcribed")
    assert [(g.role, g.phase, g.kind, g.backend, g.sizes) for g in f.graphs] == [
        ("target", "verify", "CUDA graph", "full", (1, 2, 4, 8)),
        ("draft", "verify", "CUDA graph", "full", (1, 2, 4, 8)),
    ]
    assert (f.graphs[0].seconds, f.graphs[0].gigabytes) == (3.12, 0.40)
    assert (f.selector_folded, f.selector_sampling, f.eager_reason) == (True, True, None)
    assert (f.draft_model, f.draft_attention, f.block_size) == ("DFlash2DraftModel", "flashinfer", 8)
    assert (f.autotune, f.fused_kv, f.fallbacks, f.compiled) == ("completed", True, [], [])
    assert f.autotune_cache is not None
    assert f.autotune_cache.endswith("rank_tp0_pp0_dp0.json")
    assert (f.kv_dtype, f.kv_tokens, f.mamba_slots) == ("float8_e4m3fn", 827041, 50)
    assert (f.pool_tokens, f.running_limit, f.context_length) == (827041, 8, 262144)
    assert f.model_class == "Qwen3_5ForConditionalGeneration"
    assert f.quantization == "quant=modelopt_mixed, quant_algo=MIXED_PRECISION"
    assert (f.head_method, f.head_dtype, f.head_bytes) == ("ModelOptFp4LinearMethod", "uint8", 715161612)
    assert (f.decodes[0].running, f.decodes[0].accept_length, f.decodes[0].graph) == (1, 4.73, True)
    assert f.decodes[0].throughput == 61.2
    assert (f.ready, f.tracebacks) == (1, 0)


def test_0_5_23_recorded_on_an_h200() -> None:
    f = facts("0.5.23-h200-dflash2-recorded")
    assert [(g.role, g.phase, g.kind, g.backend, g.sizes) for g in f.graphs] == [
        ("target", "verify", "CUDA graph", "full", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("draft", "verify", "CUDA graph", "full", (1, 2, 3, 4, 5, 6, 7, 8)),
    ]
    assert (f.graphs[1].seconds, f.graphs[1].gigabytes, f.graphs_unfinished) == (20.65, 3.77, [])
    assert (f.selector_folded, f.selector_sampling, f.head_folded, f.eager_reason) == (True, True, None, None)
    assert (f.draft_model, f.draft_attention, f.block_size) == ("DFlash2DraftModel", "flashinfer", 8)
    assert (f.fused_kv, f.fallbacks, f.autotune) == (True, [], None)
    assert f.compiled == ["_fwd_kernel"]
    assert (f.head_method, f.head_dtype, f.head_bytes) == (
        "ModelOptFp4LinearMethod",
        "int32",
        294934,
    )  # Marlin's layout
    assert (f.kv_dtype, f.kv_tokens, f.mamba_slots) == ("float8_e4m3fn", 300000, 96)
    assert (f.pool_tokens, f.running_limit, f.context_length) == (300000, 8, 32768)
    assert (f.model_class, f.weight_seconds, f.weight_gigabytes) == (
        "Qwen3_5ForConditionalGeneration",
        13.53,
        0.69,
    )
    assert f.quantization == "quant=modelopt_mixed, quant_algo=MIXED_PRECISION"
    assert (f.timings["target_verify"], f.timings["draft_decode"], f.timings["tokenizer_e2e"]) == (
        316.49,
        20.65,
        388.35,
    )
    assert [(d.running, d.accept_length, d.graph) for d in f.decodes][:2] == [
        (1, 7.78, True),
        (1, 6.97, True),
    ]
    assert (f.ready, f.tracebacks) == (1, 0)


def test_0_5_23_dflash1_recorded_on_an_h200() -> None:
    f = facts("0.5.23-h200-dflash1-recorded")
    assert (f.head_folded, f.selector_folded, f.eager_reason) == (True, None, None)
    assert (f.draft_model, f.block_size) == ("DFlashDraftModel", 16)
    assert [(g.role, g.phase) for g in f.graphs] == [("target", "verify"), ("draft", "verify")]


def test_what_a_preset_wants_in_the_draft_s_graph_is_told_by_draft_class() -> None:
    first, second = facts("0.5.23-h200-dflash1-recorded"), facts("0.5.23-h200-dflash2-recorded")
    assert first.folded(["head-in-graph", "target-graph"]) is True
    assert second.folded(["head-in-graph"]) is None
    assert second.folded(["selector-in-graph"]) is True
    assert first.folded(["selector-in-graph"]) is None
    assert facts("0.5.21-dflash1-eager-transcribed").folded(["head-in-graph"]) is False


def test_weights_are_known_where_a_neighbour_freed_memory_meanwhile() -> None:
    """As an H200 shared by four engines wrote it, 2026-12-01."""
    f = parse_log(
        "[2026-12-01 13:31:49] Load weight end. elapsed=0.32 s, type=Qwen3_5ForConditionalGeneration,"
        " quant=modelopt_mixed, quant_algo=MIXED_PRECISION, avail mem=137.62 GB, mem usage=-0.02 GB.\n"
    )
    assert (f.model_class, f.weight_seconds) == ("Qwen3_5ForConditionalGeneration", 0.32)
    assert f.quantization == "quant=modelopt_mixed, quant_algo=MIXED_PRECISION"


def test_0_5_23_without_a_draft_recorded_on_an_h200() -> None:
    f = facts("0.5.23-h200-nodraft-recorded")
    assert [(g.role, g.phase, g.sizes) for g in f.graphs] == [("target", "decode", (1, 2, 4, 8))]
    assert (f.draft_model, f.selector_folded, f.fused_kv) == (None, None, None)
    assert all(d.graph and d.accept_length is None for d in f.decodes)


def test_0_5_21_dflash1_kept_eager() -> None:
    f = facts("0.5.21-dflash1")
    assert f.eager_reason == "quantized lm_head"
    assert (f.selector_folded, f.head_folded) == (False, False)
    assert (f.block_size, f.block_size_trained) == (8, 16)
    assert (f.fused_kv, f.fused_kv_why) == (False, "draft qkv is quantized")
    assert [(g.role, g.phase) for g in f.graphs] == [
        ("target", "prefill"), ("target", "verify"), ("draft", "verify"),
    ]  # fmt: skip
    assert f.graphs[1].sizes == (1, 2, 4)  # printed on the begin line in this version
    assert (f.kv_dtype, f.autotune) == ("bfloat16", None)


def test_0_5_19_selector_without_a_graph() -> None:
    f = facts("0.5.19-dflash2")
    assert f.selector_folded is True
    assert f.selector_sampling is None
    assert f.draft_graph_off is not None
    assert "0.42 GB" in f.draft_graph_off
    assert [g.role for g in f.graphs] == ["target"]
    assert len(f.fallbacks) == 1


def test_0_5_23_cpu_recorded() -> None:
    f = facts("0.5.23-cpu-dflash2-recorded")
    assert f.graphs == []
    assert f.draft_model == "DFlash2DraftModel"
    assert f.kv_dtype == "bfloat16"
    assert f.running_limit == 8
    assert f.context_length == 4096
    assert f.ready == 1
    assert (f.timings["load_weight"], f.timings["scheduler_e2e"]) == (0.32, 6.88)
    assert any(d.accept_length for d in f.decodes)


def test_nothing_is_claimed_of_an_empty_log() -> None:
    f = parse_log("")
    assert f == LogFacts()


def test_a_capture_that_did_not_end_is_unfinished() -> None:
    text = read("0.5.23-dflash2")
    cut = "\n".join(ln for ln in text.splitlines() if "Capture draft verify CUDA graph end" not in ln)
    assert parse_log(cut).graphs_unfinished == ["draft verify"]


def test_a_crash_while_tuning_is_unfinished_tuning() -> None:
    text = read("0.5.23-dflash2").replace("FlashInfer autotune completed.", "Killed")
    assert parse_log(text).autotune == "unfinished"


def test_compiling_is_seen() -> None:
    line = "2026-11-30 22:01:10,004 - INFO - core.py:594 - flashinfer.jit: Building JIT module topk; this can take"
    assert parse_log(line).compiled == ["topk"]


def test_info_and_log_agree_on_one_answer() -> None:
    info = {"version": "0.5.23", "kv_cache_dtype": "auto", "max_running_requests": 8, "device": "cuda"}
    f = gather(info, read("0.5.23-dflash2"))
    assert (f.kv_dtype, f.pool_tokens, f.running_limit) == ("fp8_e4m3", 827041, 8)
    assert f.captured("draft") == ("verify",)


def test_without_a_log_the_info_speaks() -> None:
    state = {"memory_usage": {"token_capacity": 100, "graph": {"decode": 0.5}}}
    f = gather({"kv_cache_dtype": "fp8_e4m3", "internal_states": [state]}, None)
    assert (f.log, f.kv_dtype, f.pool_tokens, f.graph_gigabytes) == (None, "fp8_e4m3", 100, {"decode": 0.5})


def test_nothing_at_all() -> None:
    f = gather(None, None)
    assert (f.version, f.kv_dtype, f.pool_tokens, f.on_cpu) == (None, None, None, False)


def test_metrics_are_summed_over_ranks() -> None:
    text = 'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_running_reqs{tp_rank="1"} 1.0\nother 5\n'
    m = parse_metrics(text)
    assert (m.running, m.queued) == (3.0, None)


PATTERNS = sorted(n for n, v in vars(log_module).items() if isinstance(v, re.Pattern))


@cache
def every_log() -> list[tuple[str, LogFacts]]:
    texts = [p.read_text() for p in sorted(LOGS.glob("*.log"))]
    texts.append("flashinfer.jit: Building JIT module topk; this can\nTraceback (most recent call last):\n")
    texts.append("DFLASH draft greedy head folded into the draft cuda graph (tp=1).")
    return [(text, parse_log(text)) for text in texts]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that no longer matches changes the facts of some log: a mutated parser is noticed."""
    logs = every_log()
    monkeypatch.setattr(log_module, name, re.compile(r"(?!x)x()()()()()()"))
    assert any(parse_log(text) != before for text, before in logs)


def test_the_logs_say_where_they_come_from() -> None:
    for path in Path(LOGS).glob("*.log"):
        assert path.stem.endswith(("-recorded", "-transcribed"))
