"""P08: DFlash1 over a packed head works under TP and inside the draft CUDA graph.

Each rank takes the maximum of its vocabulary shard, (value, global id) pairs are gathered, and the first
of the highest wins: the token an argmax over the whole vocabulary would name. The eager fallback and
the sampler that is captured into the draft graph are the same function.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from patches.contracts import heads, support

# The property test of the head paths belongs to this contract: its greedy half fails without the patch.
from patches.contracts.test_head_property import (  # noqa: F401
    ranks,
    test_dflash1_greedy_tokens_equal_the_float64_reference,
    test_every_rank_proposes_the_same,
    test_selector_candidates_equal_the_float64_reference,
)

HIDDEN, BLOCK = 16, 4
FOLDED = "DFLASH draft greedy head folded into the draft cuda graph (tp=1)."


def bind(head, **kw) -> SimpleNamespace:
    """A worker with the two greedy methods the engine gives it."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    worker = heads.dflash_worker(head, block_size=BLOCK, **kw)
    worker._greedy_sample_from_quantized_head = DFlashWorkerV2._greedy_sample_from_quantized_head.__get__(
        worker
    )
    return worker


def eager(hidden: torch.Tensor, head, **kw) -> torch.Tensor:
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    return DFlashWorkerV2._greedy_sample_from_vocab_parallel_head(
        bind(head), hidden_states=hidden, lm_head=head, **kw
    )


def build(worker, monkeypatch):
    """The draft sampler the worker would capture, with decode graphs up to batch size 4."""
    from sglang.srt.speculative import dflash_worker_v2 as module

    decode = SimpleNamespace(bs=[1, 2, 4])
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
    monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(graph=graph))
    return module.DFlashWorkerV2._maybe_build_draft_sampler(worker)


def whole_vocabulary_argmax(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Lowest id among the maxima of the logits in the dtype the head gives them."""
    logits = (hidden.double() @ rows.double().T).to(hidden.dtype)
    best = logits.max(dim=-1, keepdim=True).values
    ids = torch.arange(rows.shape[0]).expand_as(logits)
    return ids.masked_fill(logits != best, rows.shape[0]).min(dim=-1).values


def proposals(block_hidden: torch.Tensor) -> torch.Tensor:
    """Hidden states of the positions that are proposed: all of a block but the first."""
    return block_hidden.view(-1, BLOCK, HIDDEN)[:, 1:].reshape(-1, HIDDEN)


# --- two ranks -----------------------------------------------------------------------------------

# name -> (rows of the whole vocabulary, rows of rank 0, padding of rank 0, padding of rank 1)
SHARDS = {
    "even": (24, 12, 4, 4),
    "uneven": (19, 12, 4, 9),
    "one_row": (13, 12, 0, 11),
    "padding_only": (12, 12, 4, 16),
}
KINDS = ("random", "ties")


def shard_head(layout: str, rows: torch.Tensor, split: int, padded: tuple[int, int], rank: int):
    part = rows[:split] if rank == 0 else rows[split:]
    start = 0 if rank == 0 else split
    return heads.packed_head(
        layout, part, padded=padded[rank], start=start, org_vocab_size=rows.shape[0], tp_size=2
    )


def ask_two_ranks(rank: int, world: int) -> dict[str, list[int]]:
    """Ids of every case on this rank: eager in chunks, and as the captured sampler would leave them."""
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.speculative import dflash_worker_v2 as module

    answers: dict[str, list[int]] = {}
    for name, (vocab, split, *padded) in SHARDS.items():
        for kind in KINDS:
            rows, hidden = case(vocab, kind)
            for layout in ("nvfp4", "fp8", "ct_nvfp4"):
                head = shard_head(layout, rows, split, tuple(padded), rank)
                key = f"{name}/{kind}/{layout}"
                answers[key] = eager(proposals(hidden), head, chunk_size=5).tolist()
                answers[f"{key}/empty"] = eager(proposals(hidden)[:0], head).tolist()
                if not hasattr(module, "_PackedHeadDraftSampler"):
                    continue
                sampler = module._PackedHeadDraftSampler(
                    lm_head=head, block_size=BLOCK, max_bs=8, device="cpu", tp_group=get_parallel().tp_group
                )
                sampler(hidden)
                answers[f"{key}/folded"] = sampler.out[: proposals(hidden).shape[0]].tolist()
                sampler(hidden[:0])
    return answers


def case(vocab: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, hidden states of six blocks). In "ties" few values occur, so maxima repeat across shards."""
    rows = heads.rows_of(vocab, HIDDEN, seed=vocab)
    hidden = heads.hidden_of(6 * BLOCK, HIDDEN, seed=vocab + 1)
    if kind == "ties":
        rows = rows[torch.arange(vocab) % 3]
    return rows, hidden


def test_two_ranks_name_the_token_of_the_whole_vocabulary():
    results = support.spawn_ranks(ask_two_ranks, 2)
    assert results[0] == results[1], "the ranks disagree on a token"
    ties = 0
    for key, ids in results[0].items():
        name, kind, _layout, *form = key.split("/")
        rows, hidden = case(SHARDS[name][0], kind)
        expected = whole_vocabulary_argmax(proposals(hidden), rows).tolist()
        assert ids == ([] if form == ["empty"] else expected), key
        ties += kind == "ties"
    assert ties
    assert sum(key.endswith("/folded") for key in results[0]) == len(SHARDS) * len(KINDS) * 3


# --- one rank ------------------------------------------------------------------------------------


@pytest.fixture
def one_rank(engine):
    """Engine context with one-rank groups."""


@pytest.mark.parametrize("layout", heads.LAYOUTS)
def test_every_admitted_packed_head_is_folded_and_says_so(layout, one_rank, monkeypatch, caplog):
    rows, hidden = case(13, "random")
    head = heads.packed_head(layout, rows, padded=3)
    with caplog.at_level(logging.INFO):
        sampler = build(bind(head), monkeypatch)
    assert sampler is not None, f"kept eager: {caplog.messages}"
    assert FOLDED in caplog.messages
    sampler(hidden[: 4 * BLOCK])
    expected = whole_vocabulary_argmax(proposals(hidden[: 4 * BLOCK]), rows)
    assert torch.equal(sampler.out, expected)
    assert sampler.out.dtype == torch.int64


def test_eager_and_folded_run_one_function(one_rank, monkeypatch):
    from sglang.srt.speculative import dflash_worker_v2 as module

    calls = []
    original = module.greedy_ids_from_packed_head

    def counted(hidden, head, tp_group=None):
        calls.append(hidden.shape[0])
        return original(hidden, head, tp_group)

    monkeypatch.setattr(module, "greedy_ids_from_packed_head", counted)
    rows, hidden = case(13, "random")
    head = heads.packed_head("nvfp4", rows, padded=3)
    build(bind(head), monkeypatch)(hidden[: 2 * BLOCK])
    assert calls == [2 * (BLOCK - 1)]
    eager(proposals(hidden), head, chunk_size=7)
    assert calls[1:] == [7, 7, 4]


def test_folded_sampler_never_reads_a_value_on_the_host(one_rank, monkeypatch):
    """A fake run has shapes and no values: whatever would wait for the device, and so break capture, raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows, _ = case(13, "random")
    sampler = build(bind(heads.packed_head("nvfp4", rows, padded=3)), monkeypatch)
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden = torch.empty(2 * BLOCK, HIDDEN, dtype=torch.bfloat16)
        sampler.out = torch.empty(12, dtype=torch.int64)
        sampler(hidden)


def test_two_position_blocks_reach_the_kernel_contiguous(one_rank, monkeypatch):
    rows, hidden = case(13, "random")
    head = heads.packed_head("nvfp4", rows)
    worker = bind(head)
    worker.block_size = 2
    sampler = build(worker, monkeypatch)
    sampler(hidden[:8])
    assert torch.equal(sampler.out[:4], whole_vocabulary_argmax(hidden[1:8:2], rows))
    assert head.quant_method.inputs[-1].is_contiguous()


# --- the old path --------------------------------------------------------------------------------


@pytest.mark.guard
def test_dense_head_keeps_its_sampler_and_its_matrix(one_rank, monkeypatch, caplog):
    from sglang.srt.speculative import dflash_worker_v2 as module

    rows, hidden = case(13, "random")
    head = heads.dense_head(rows.bfloat16(), padded=3)
    with caplog.at_level(logging.INFO):
        sampler = build(bind(head), monkeypatch)
    assert type(sampler) is module._DflashDraftSampler
    assert sampler.weight is head.weight
    assert FOLDED in caplog.messages
    sampler(hidden[: 4 * BLOCK])
    assert torch.equal(sampler.out, whole_vocabulary_argmax(proposals(hidden[: 4 * BLOCK]), rows))
    assert not head.quant_method.inputs


@pytest.mark.guard
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("domino", "quantized lm_head"),
        ("refused", "quantized lm_head"),
        ("refused_no_weight", "quantized lm_head has no dense weight"),
        ("switch", "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER=1"),
        ("one_position", "block_size<=1"),
        ("no_head", "no target lm_head"),
    ],
)
def test_what_stays_eager_says_why(change, reason, one_rank, monkeypatch, caplog):
    head = heads.packed_head("fp8", heads.rows_of(13, HIDDEN))
    if change == "refused":
        del head.input_scale
    elif change == "refused_no_weight":
        head = SimpleNamespace(quant_method=None)
    elif change == "no_head":
        head = None
    elif change == "switch":
        monkeypatch.setenv("SGLANG_DFLASH_EAGER_DRAFT_SAMPLER", "1")
    worker = bind(head)
    worker._is_domino = change == "domino"
    if change == "one_position":
        worker.block_size = 1
    with caplog.at_level(logging.INFO):
        assert build(worker, monkeypatch) is None
    assert f"DFLASH draft greedy head kept eager (reason={reason})." in caplog.messages


@pytest.mark.guard
def test_added_vocabulary_stays_eager(one_rank, monkeypatch):
    head = heads.packed_head("fp8", heads.rows_of(13, HIDDEN))
    head.shard_indices.num_added_elements = 1
    assert build(bind(head), monkeypatch) is None


@pytest.mark.guard
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_eager_ids_are_the_argmax_without_the_padding(kind, one_rank):
    rows, hidden = case(13, kind)
    head = heads.packed_head("nvfp4", rows, padded=3)
    assert torch.equal(eager(hidden, head, chunk_size=5), whole_vocabulary_argmax(hidden, rows))
    assert eager(hidden[:0], head).shape == (0,)


@pytest.mark.guard
def test_a_head_that_only_knows_its_vocabulary_size_is_cropped_to_it(one_rank):
    rows, hidden = case(13, "random")
    head = heads.packed_head("gguf", rows, padded=3)
    del head.shard_indices
    assert torch.equal(eager(hidden, head), whole_vocabulary_argmax(hidden, rows))
