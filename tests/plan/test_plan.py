"""The memory plan: the published figures it must give, the invariants it must keep, what it says when it does not fit."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import ConfigError
from launch.plan import GIB, MemoryPlan, full_memory_ratio, kv_bytes, plan, state_bytes
from launch.planfacts import measured_free_gib, plan_facts, table
from launch.plantable import DOC, PUBLISHED, QWEN_27B, RATIOS, error, render
from launch.preset import Preset
from launch.registry import Registry
from launch.resolve import resolve
from tests.hub.model27b import preset

BASE = {"mem_fraction_static": 0.65, "chunked_prefill_size": 2048, "mamba_ssm_dtype": "bfloat16",
        "max_running_requests": 8, "mamba_radix_cache_strategy": "extra_buffer",
        "mamba_full_memory_ratio": "computed", "disable_prefill_cuda_graph": True}  # fmt: skip


def make(
    machine: str = "gb10-128",
    free: float | None = None,
    drop: tuple[str, ...] = (),
    facts: dict | None = None,
    **engine,
) -> MemoryPlan:
    keys = {k: v for k, v in {**BASE, **engine}.items() if k not in drop}
    resolved = resolve(preset(engine=keys), machine)
    known = plan_facts(resolved, free_gib=free)
    return plan(resolved, dataclasses.replace(known, **(facts or {})))


def test_bytes_of_the_27b():
    assert state_bytes(QWEN_27B, "float32") == 153_944_064
    assert state_bytes(QWEN_27B, "bfloat16") == 78_446_592
    assert kv_bytes(QWEN_27B, "fp8_e4m3") == 32_768
    assert kv_bytes(QWEN_27B, "bf16") == 65_536


@pytest.mark.parametrize(("who", "strategy", "d", "value"), RATIOS)
def test_published_ratios_to_the_last_digit(who, strategy, d, value):
    got = full_memory_ratio(
        QWEN_27B, ssm_dtype="float32", kv_dtype="fp8_e4m3", strategy=strategy, draft_tokens=d
    )
    assert got == value


LIMITS = {"pangoleen": 0.005, "r0b0tlab": 0.02, "robbiemu": 0.01}


@pytest.mark.parametrize("p", PUBLISHED, ids=lambda p: f"{p.by}-{p.fraction}-{p.tokens}")
def test_published_pools_within_the_stated_error(p):
    assert abs(error(p)) <= LIMITS[p.by]


def test_the_tables_in_the_docs_are_generated():
    text = DOC.read_text("utf-8")
    assert render(text) == text
    for p in PUBLISHED:
        assert f"{p.tokens:,}" in text
    for by, limit in LIMITS.items():
        assert re.search(rf"{by}.*within {100 * limit:g} %", text), by


def test_the_plan_agrees_with_the_pool_it_is_built_from():
    """The whole plan, not only its core, gives pangoleen's 413,460 within half a percent."""
    data = preset(engine={"mem_fraction_static": 0.65, "kv_cache_dtype": "bf16", "mamba_ssm_dtype": "bfloat16",
                          "max_running_requests": 4, "mamba_full_memory_ratio": 11.93, "chunked_prefill_size": 2048,
                          "disable_prefill_cuda_graph": True, "mamba_radix_cache_strategy": "extra_buffer"},
                  draft={"repo": "maurienne-ai/Qwen3.8-27B-DFlash2-NVFP4-RTNcal", "tokens": 16,
                         "revision": "bd7a934213c47a9e7ef69eef36bb3325f47fd1f1", "quantization": "modelopt_fp4"})  # fmt: skip
    r = resolve(data, "gb10-128")
    made = plan(r, plan_facts(r))
    assert made.fits
    assert made.pool_tokens == pytest.approx(413_460, rel=0.005)
    assert made.concurrency == 4


def test_every_term_is_accounted_for():
    made = make()
    names = [t.name for t in made.terms]
    assert names == ["target weights", "draft weights", "runtime", "multimodal cache", "recurrent states",
                     "verify scratch", "kv pool", "activations", "draft sampling", "host"]  # fmt: skip
    assert all(t.formula and t.source for t in made.terms)
    inside = sum(t.size for t in made.terms[:7])
    share = 114.0 * GIB * made.fraction
    assert share - made.kv_bytes_per_token - 1 <= inside <= share
    assert sum(t.size for t in made.terms) <= 114.0 * GIB


def test_the_ratio_is_computed_when_asked():
    assert make().ratio == make().ratio_balanced == full_memory_ratio(
        QWEN_27B, ssm_dtype="bfloat16", kv_dtype="fp8_e4m3", strategy="extra_buffer", draft_tokens=8
    )  # fmt: skip
    assert make(drop=("mamba_full_memory_ratio",)).ratio == 0.9


def test_a_far_ratio_and_a_clamp_are_said():
    made = make(mamba_full_memory_ratio=0.1, max_running_requests=32)
    assert any("far from the balanced" in w for w in made.warnings)
    assert any(re.search(r"max_running_requests 32 will be clamped to \d+", w) for w in made.warnings)


def test_a_pool_shorter_than_the_context_is_said():
    made = make(context_length=262_144, mem_fraction_static=0.40)
    assert made.longest_context == made.pool_tokens < 262_144
    assert any("does not fit" in w for w in made.warnings)


def test_slots_given_outright_are_used():
    made = make(max_mamba_cache_size=96, drop=("mamba_full_memory_ratio",))
    assert made.state_slots == 96
    assert made.concurrency == 8


def test_a_fraction_from_a_discrete_card_is_refused_with_the_knob():
    made = make(mem_fraction_static=0.95)
    assert not made.fits
    assert "leaves 5.7 of 114.0 GiB" in made.problems[0]
    assert [k.key for k in made.knobs] == ["engine.mem_fraction_static"]
    assert make(mem_fraction_static=made.knobs[0].to).fits


@pytest.mark.parametrize(
    ("fraction", "fits"), [(0.50, True), (0.65, True), (0.73, True), (0.85, False), (0.90, False)]
)
def test_fractions_others_ran_on_gb10(fraction, fits):
    """0.50 to 0.73 are long-run settings there; at 0.85 earlyoom killed servers (facts 2.4, 4)."""
    assert make(mem_fraction_static=fraction).fits is fits


def test_weights_that_do_not_fit_name_the_figures():
    made = make(mem_fraction_static=0.2)
    assert "weights and runtime take 26.5 GiB, the static share is only 22.8 GiB" in made.problems[0]
    assert [k.key for k in made.knobs] == ["engine.mem_fraction_static"]
    assert make(mem_fraction_static=made.knobs[0].to).fits


def test_too_few_states_for_one_request():
    made = make(max_mamba_cache_size=4)
    assert made.problems == ("4 state slots are fewer than the 5 one request needs",)
    assert made.mend == "engine.max_mamba_cache_size = 5 (now 4)"
    assert make(max_mamba_cache_size=5).fits


def test_nothing_fits_on_a_card_of_8_gib():
    made = make("rtx-5090", free=8.0, mem_fraction_static=0.9)
    assert not made.fits
    assert made.knobs == ()
    assert made.mend == ""


def test_without_a_fraction_the_highest_safe_one_is_taken():
    made = make(drop=("mem_fraction_static",))
    assert made.fits
    assert made.fraction == made.fraction_max


def test_a_measured_free_figure_wins():
    busy, idle = make(free=101.0), make(free=114.0)
    assert busy.pool_tokens < idle.pool_tokens


def test_no_draft_needs_no_scratch():
    p = preset(draft=None, engine=BASE)
    r = resolve(p, "gb10-128")
    made = plan(r, plan_facts(r))
    assert next(t.size for t in made.terms if t.name == "verify scratch") == 0
    assert "draft weights" not in [t.name for t in made.terms]


def test_presets_nobody_sized_are_named():
    p = preset(target={"repo": "acme/unknown"})
    with pytest.raises(ConfigError, match=r"target acme/unknown: its size is unknown.*checkpoints\.toml"):
        plan_facts(resolve(p, "gb10-128"))
    data = preset().model_dump(by_alias=True, mode="json", exclude_none=True)
    del data["target"]["geometry"]
    r = resolve(Preset.model_validate(data), "gb10-128")
    with pytest.raises(ConfigError, match=r"target\.geometry is missing"):
        plan(r, plan_facts(r))


def test_every_checked_in_preset_plans_on_every_class_it_supports():
    """None is left without a plan; validated and reported presets must fit where they were run."""
    for p in Registry().load_all():
        for machine in p.machine:
            r = resolve(p, machine)
            made = plan(r, plan_facts(r))
            assert made.terms, r.slug
            if machine == p.default_machine and p.status in ("fixture", "validated", "reported"):
                assert made.fits, f"{r.slug}: {made.problems}"


def test_the_5090_serves_one_request_at_its_published_fraction():
    """0.88 with bf16 states is published for the 5090 (facts 2.4); fp32 states leave one request at most."""
    keys = {"drop": ("max_running_requests", "disable_prefill_cuda_graph"), "mem_fraction_static": 0.88,
            "mamba_radix_cache_strategy": "extra_buffer_lazy", "kv_cache_dtype": "fp8_e4m3"}  # fmt: skip
    made = make("rtx-5090", **keys)
    assert made.fits
    assert made.concurrency >= 1
    fp32 = make("rtx-5090", mamba_ssm_dtype="float32", **keys)
    assert fp32.concurrency <= 1


def test_all_data_has_a_source():
    for role in ("target", "draft"):
        for entry in table("checkpoints")[role]:
            assert entry["source"], entry
            assert entry["weight_bytes"] > 0
    assert all(m["source"] and m["free"] < m["total"] for m in table("machines").values())


def test_free_memory_is_read_as_the_engine_reads_it(tmp_path: Path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       127600000 kB\nMemAvailable:   119537664 kB\n")
    assert measured_free_gib(meminfo) == pytest.approx(114.0, abs=0.01)
    assert measured_free_gib(tmp_path / "none") is None


numbers = st.fixed_dictionaries(
    {
        "mem_fraction_static": st.floats(0.1, 0.95),
        "max_running_requests": st.integers(1, 64),
        "mamba_full_memory_ratio": st.one_of(st.just("computed"), st.floats(0.05, 20)),
        "mamba_ssm_dtype": st.sampled_from(["float32", "bfloat16"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8_e4m3", "bf16"]),
        "mamba_radix_cache_strategy": st.sampled_from(["auto", "extra_buffer", "extra_buffer_lazy"]),
        "chunked_prefill_size": st.sampled_from([2048, 4096, 8192]),
    }
)


@settings(max_examples=150, deadline=None)
@given(engine=numbers, free=st.floats(20, 120))
def test_a_plan_never_promises_more_than_there_is(engine, free):
    made = make(free=free, **engine)
    if not made.fits:
        assert made.problems
        return
    assert sum(t.size for t in made.terms) <= free * GIB + 1
    assert 1 <= made.concurrency <= engine["max_running_requests"]
    assert made.state_slots >= made.concurrency * made.slots_per_request
    assert made.pool_tokens > 0


@settings(max_examples=80, deadline=None)
@given(engine=numbers, free=st.floats(20, 120))
def test_what_it_proposes_really_fits(engine, free):
    made = make(free=free, **engine)
    if not made.knobs or any(k.key.startswith("draft") for k in made.knobs):
        return
    assert make(free=free, **{**engine, **{k.key.removeprefix("engine."): k.to for k in made.knobs}}).fits
