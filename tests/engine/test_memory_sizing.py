"""The plan's arithmetic against the engine's own code: state slots, what is left for KV, bytes per slot and token.

`launch.plan` re-states `KVCacheConfigurator._handle_max_mamba_cache` of SGLang so that it can run without torch. Here the
engine's function runs on the same numbers, with its configuration objects replaced by plain ones.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.plan import SLOTS, Request, kv_bytes, size_pools, state_bytes
from launch.plantable import QWEN_27B

pytestmark = pytest.mark.engine
GIB = 1 << 30


def request(**changes: Any) -> Request:
    base = Request(
        fraction=0.65, kv_dtype="fp8_e4m3", draft_kv_dtype="fp8_e4m3", ssm_dtype="bfloat16", strategy="extra_buffer",
        ratio=3.38, mamba_slots=None, max_running=8, running_asked=True, max_tokens=None, context=262_144, chunk=2048,
        prefill_graph=False, draft_tokens=8, request_tokens=9216,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def engine_split(budget_gib: float, q: Request, ratio: float, state: int) -> tuple[int, float]:
    """(state slots, GiB left for KV) by the installed engine."""
    from sglang.srt.mem_cache import kv_cache_configurator as engine

    schedule = SimpleNamespace(
        max_mamba_cache_size=q.mamba_slots, max_running_requests=q.max_running, mamba_full_memory_ratio=ratio,
        disable_overlap_schedule=q.strategy == "no_buffer",
    )  # fmt: skip
    buffered = q.strategy.startswith("extra_buffer")
    mamba = SimpleNamespace(
        enable_linear_replayssm_spec=False, enable_mamba_extra_buffer=buffered,
        enable_mamba_extra_buffer_lazy=q.strategy == "extra_buffer_lazy",
    )  # fmt: skip
    context = SimpleNamespace(override=lambda _why, **kw: vars(schedule).update(kw))
    stand_ins = {
        "get_schedule": lambda: schedule,
        "get_exec": lambda: SimpleNamespace(mamba=mamba),
        "get_memory": lambda: SimpleNamespace(disable_radix_cache=q.strategy == "radix_off"),
        "get_spec": lambda: SimpleNamespace(speculative_num_draft_tokens=q.draft_tokens),
        "get_context": lambda: context,
        "_pd_prefill_skips_mamba_spec_state": lambda: False,
    }
    params = SimpleNamespace(layers=list(range(48)), mamba_cache_per_req=state)
    fake: Any = SimpleNamespace(
        mambaish_config=SimpleNamespace(mamba2_cache_params=params), pp_size=1, attn_dp_size=1,
        fused_entry_bytes=lambda _kind: None, extra_mamba_cache_bytes_per_req=0,
        spec_algorithm=SimpleNamespace(is_none=lambda: q.draft_tokens == 0),
        hybrid_gdn_config=object(), hybrid_kda_config=None,
    )  # fmt: skip
    fake._calculate_mamba_ratio = lambda: engine.KVCacheConfigurator._calculate_mamba_ratio(fake)
    with pytest.MonkeyPatch.context() as mp:
        for name, stand_in in stand_ins.items():
            mp.setattr(engine, name, stand_in)
        left = engine.KVCacheConfigurator._handle_max_mamba_cache(fake, budget_gib)
    return schedule.max_mamba_cache_size, left


cases = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["extra_buffer", "extra_buffer_lazy", "no_buffer", "radix_off"]),
        "ssm_dtype": st.sampled_from(["float32", "bfloat16"]),
        "draft_tokens": st.sampled_from([0, 4, 8, 16]),
        "max_running": st.integers(1, 64),
        "mamba_slots": st.one_of(st.none(), st.integers(5, 200)),
    }
)


@settings(max_examples=300, deadline=None)
@given(changes=cases, budget=st.floats(25, 90), ratio=st.floats(0.2, 15))
def test_the_same_slots_and_the_same_rest(changes: dict[str, Any], budget: float, ratio: float) -> None:
    q = request(**changes)
    state, cell = state_bytes(QWEN_27B, q.ssm_dtype), 43_008
    ours = size_pools(int(budget * GIB), q, state=state, cell=cell, ratio=ratio)
    if ours.slots <= 0:
        with pytest.raises(RuntimeError, match="Not enough GPU memory"):
            engine_split(budget, q, ratio, state)
        return
    slots, left = engine_split(budget, q, ratio, state)
    assert ours.slots == slots
    assert ours.tokens == pytest.approx(
        max(0, int(left * GIB) // cell), abs=2
    )  # the engine counts in floating GiB


def test_slots_per_request_are_the_engines() -> None:
    from sglang.srt.mem_cache.allocation_sizing import get_mamba_tracking_slots
    from sglang.srt.mem_cache.kv_cache_configurator import MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO as BASE

    assert SLOTS["extra_buffer"] == BASE + get_mamba_tracking_slots(extra_buffer=True, overlap=True)
    assert SLOTS["extra_buffer_lazy"] == BASE + get_mamba_tracking_slots(
        extra_buffer=True, overlap=True, lazy=True
    )
    assert SLOTS["no_buffer"] == BASE + get_mamba_tracking_slots(extra_buffer=False, overlap=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_a_state_are_the_engines(dtype: str) -> None:
    import torch
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape

    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=48 * 128, n_groups=16, num_heads=48, head_dim=128, state_size=128,
        conv_kernel=4, conv_shard_groups=[2048, 2048, 6144],
    )  # fmt: skip
    widths = Mamba2StateDType(conv=torch.bfloat16, temporal=getattr(torch, dtype))
    params = Mamba2CacheParams(shape=shape, layers=list(range(48)), dtype=widths)
    assert params.mamba_cache_per_req == state_bytes(QWEN_27B, dtype)


def test_bytes_of_a_draft_token_are_the_engines() -> None:
    import torch
    from sglang.srt.speculative.dflash_utils import (
        dflash_draft_cell_size_per_token,
        scale_kv_cell_size_per_token_for_dflash,
    )

    draft = SimpleNamespace(get_num_kv_heads=lambda _tp: 8, head_dim=128, v_head_dim=128)
    cell = dflash_draft_cell_size_per_token(
        draft_model_config=draft, draft_num_layers=5, draft_kv_cache_dtype=torch.bfloat16, tp_size=1
    )
    assert cell == 2 * 5 * 8 * 128 * 2 == 20_480
    total = scale_kv_cell_size_per_token_for_dflash(
        target_cell_size_per_token=kv_bytes(QWEN_27B, "bf16"), target_num_layers=16, draft_num_layers=5,
        draft_cell_size_per_token=cell,
    )  # fmt: skip
    assert total == 86_016
