"""P29: a row of req_to_token holds what a speculative step reserves past the end of the context.

Every decode step of spec v2 reserves twice its block past the committed length. Where the row is shorter, the rest of the
reserve is written into the next request's row and never freed: the idle check then ends the server.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from patches.contracts import support

CONTEXT = 4096

pytestmark = pytest.mark.usefixtures("engine")


def publish(algorithm: str | None, tokens: int | None, **more: Any) -> None:
    """Publish defaults with the speculation leaves as a resolved start has them."""
    support.publish_args()
    from sglang.srt.runtime_context import get_context

    get_context().override(
        "contract",
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=tokens,
        page_size=more.pop("page_size", 1),
        **more,
    )


def width() -> int:
    from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len

    return CONTEXT + get_req_to_token_extra_context_len()


def reserved_at_the_edge(monkeypatch: pytest.MonkeyPatch, page_size: int) -> int:
    """How far DFlash's own preparation reserves for a request that lacks one token of a full context."""
    from sglang.srt.speculative import dflash_info_v2

    seen: list[int] = []
    monkeypatch.setattr(
        dflash_info_v2, "_get_overlap_plan_stream", lambda _device: (None, contextlib.nullcontext())
    )
    monkeypatch.setattr(
        dflash_info_v2,
        "alloc_for_spec_decode",
        lambda *_args, nxt_kv_lens_cpu, **_kwargs: seen.append(int(nxt_kv_lens_cpu.max())),
    )
    request = SimpleNamespace(
        kv=SimpleNamespace(kv_allocated_len=CONTEXT - 1, kv_committed_len=CONTEXT - 1),
        sampling_params=SimpleNamespace(top_k=1),
        decode_batch_idx=0,
    )
    batch = SimpleNamespace(
        device=torch.device("cpu"),
        batch_size=lambda: 1,
        maybe_evict_swa=lambda: None,
        token_to_kv_pool_allocator=SimpleNamespace(page_size=page_size),
        tree_cache=None,
        req_to_token_pool=None,
        req_pool_indices=torch.zeros(1, dtype=torch.int64),
        reqs=[request],
    )
    dflash_info_v2.DFlashDraftInputV2.create_idle_input(batch.device).prepare_for_decode(batch)
    return seen[0]


@pytest.mark.parametrize("tokens", [8, 16, 17])
def test_a_full_context_s_reserve_lies_in_its_row(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    publish("DFLASH", tokens)
    assert reserved_at_the_edge(monkeypatch, 1) <= width()


def test_eagle_s_reserve_lies_in_its_row() -> None:
    publish("EAGLE", 8, speculative_num_steps=7, speculative_eagle_topk=1)
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    assert CONTEXT - 1 + get_alloc_reserve_per_decode() <= width()


@pytest.mark.guard
def test_without_speculation_the_row_is_as_before() -> None:
    publish(None, None)
    assert width() == CONTEXT + 4


@pytest.mark.guard
def test_a_row_that_held_the_reserve_is_as_before() -> None:
    publish("EAGLE", 4, speculative_num_steps=3, speculative_eagle_topk=1)
    assert width() == CONTEXT + 8


@pytest.mark.guard
def test_whole_pages_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    publish("DFLASH", 16, page_size=64)
    assert width() == CONTEXT + 32 + 63
    assert reserved_at_the_edge(monkeypatch, 64) <= width()
