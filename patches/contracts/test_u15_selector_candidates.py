"""U15 (upstream): DFlash2's candidates come through a quantized head, padding masked, TP-local.

Under TP each rank takes its own top-k and only those K values (as FP32) and ids are gathered, never the
logits; ids are global. The radix top-k of the GPU wants contiguous logits, so the padded tail is masked,
not cropped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from patches.contracts import heads, support

VOCAB, HIDDEN, TOP_K, BATCH = 22, 16, 4, 6


def radix_top_k(scores: torch.Tensor, k: int, *, sorted: bool = False, deterministic: bool = False):
    """FlashInfer's terms: contiguous scores, and the two flags its callers need."""
    assert scores.is_contiguous(), "the radix kernel refuses strided logits"
    assert sorted
    assert deterministic
    return torch.topk(scores, k, dim=-1)


def expect(rows: torch.Tensor, hidden: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    logits = (hidden.double() @ rows.double().T).to(hidden.dtype).float()
    assert torch.equal(values, torch.topk(logits, TOP_K, dim=-1).values)
    assert torch.equal(logits.gather(-1, ids), values)
    assert all(len(set(row)) == TOP_K for row in ids.tolist())


@pytest.mark.parametrize("layout", heads.ADMITTED_BEFORE)
@pytest.mark.parametrize("padded", [0, 10])
def test_quantized_head_with_padding_masked(layout, padded, engine, monkeypatch):
    from sglang.srt.models import dflash

    monkeypatch.setattr(dflash, "_flashinfer_top_k", radix_top_k)
    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(BATCH, HIDDEN)
    head = heads.packed_head(layout, rows, padded=padded)
    ids, values = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, TOP_K), hidden)
    assert head.quant_method.inputs == [hidden]
    expect(rows, hidden, ids, values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dense_head_is_sliced_to_its_rows(dtype, engine, monkeypatch):
    from sglang.srt.models import dflash

    monkeypatch.setattr(dflash, "_flashinfer_top_k", radix_top_k)
    rows, hidden = heads.rows_of(VOCAB, HIDDEN).to(dtype), heads.hidden_of(BATCH, HIDDEN)
    head = heads.dense_head(rows, padded=10)
    head.weight[VOCAB:] = 100.0
    ids, values = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, TOP_K), hidden)
    assert not head.quant_method.inputs
    expect(rows, hidden.to(dtype), ids, values)


def test_neither_dense_nor_quantized_is_refused(engine):
    from sglang.srt.models import dflash

    head = heads.packed_head("fp8", heads.rows_of(VOCAB, HIDDEN))
    del head.input_scale
    with pytest.raises(RuntimeError, match="requires a dense"):
        dflash.DFlash2DraftModel.compute_candidates(
            heads.draft_model(head, TOP_K), heads.hidden_of(2, HIDDEN)
        )


def test_worker_folds_the_selector_over_a_quantized_head(engine, monkeypatch, caplog):
    import logging
    from types import SimpleNamespace

    from sglang.srt.speculative import dflash_worker_v2 as module

    decode = SimpleNamespace(bs=[1])
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
    monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(graph=graph))
    monkeypatch.setattr(module, "_SelectorDraftSampler", lambda **kw: kw)
    for layout in heads.ADMITTED_BEFORE:
        head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN))
        worker = heads.dflash_worker(head, selector=object())
        with caplog.at_level(logging.INFO):
            assert module.DFlashWorkerV2._maybe_build_draft_sampler(worker) is not None
        assert worker.draft_model.lm_head is head
    assert any("DFLASH selector decode folded into the draft cuda graph" in m for m in caplog.messages)


# --- two ranks: rows 0..12 with 4 padded, rows 12..22 with 6 -------------------------------------


def ask_rank(rank: int, world: int) -> list[dict[str, Any]]:
    from sglang.srt.models import dflash

    dflash._flashinfer_top_k = radix_top_k
    gathered: list[tuple[tuple[int, ...], torch.dtype]] = []
    gather = dflash.tensor_model_parallel_all_gather

    def noting(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        gathered.append((tuple(x.shape), x.dtype))
        return gather(x, dim)

    dflash.tensor_model_parallel_all_gather = noting
    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(BATCH, HIDDEN)
    part = rows[:12] if rank == 0 else rows[12:]
    answers = []
    for layout in ("nvfp4", "w4a16_marlin", "fp8"):
        head = heads.packed_head(
            layout, part, padded=16 - part.shape[0], start=12 * rank, org_vocab_size=VOCAB, tp_size=2
        )
        gathered.clear()
        ids, values = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, TOP_K), hidden)
        answers.append({"ids": ids.tolist(), "values": values.tolist(), "gathered": list(gathered)})
    return answers


def test_two_ranks_gather_only_k_values_and_ids():
    first, second = support.spawn_ranks(ask_rank, 2)
    assert first == second
    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(BATCH, HIDDEN)
    for answer in first:
        expect(rows, hidden, torch.tensor(answer["ids"]), torch.tensor(answer["values"]))
        shapes = [shape for shape, _ in answer["gathered"]]
        assert shapes == [(BATCH, TOP_K)] * 2, "more than the candidates crossed the ranks"
        assert [dtype for _, dtype in answer["gathered"]] == [torch.float32, torch.int64]
    assert {i >= 12 for row in first[0]["ids"] for i in row} == {True, False}, "one rank gave all candidates"
