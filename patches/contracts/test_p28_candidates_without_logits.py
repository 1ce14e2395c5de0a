"""P28: DFlash2's candidates come from one kernel over the head, and logits are never written, where asked for.

The kernel runs in Triton's interpreter, in a process of its own: what decides is read at import. A head
that is projected anyway raises here. By default nothing changes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from patches.contracts import heads, support

VOCAB, WIDTH, TOP_K, BATCH, SPLIT = 150, 128, 4, 5, 90
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def hidden_states() -> torch.Tensor:
    return torch.randn((BATCH, WIDTH), generator=torch.Generator().manual_seed(1)).bfloat16()


def packed_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 pairs [VOCAB, WIDTH / 2] and E4M3 scales [VOCAB, WIDTH / 16], subnormal ones too."""
    gen = torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 256, (VOCAB, WIDTH // 2), generator=gen, dtype=torch.uint8)
    scales = torch.randint(0, 0x50, (VOCAB, WIDTH // 16), generator=gen, dtype=torch.uint8)
    pairs[40], scales[40] = pairs[17], scales[17]  # equal logits: the lower id first
    return pairs, scales.view(torch.float8_e4m3fn)


def exact_rows(kind: str) -> torch.Tensor:
    """float64 [VOCAB, WIDTH]: what the head's bytes stand for."""
    if kind == "dense":
        gen = torch.Generator().manual_seed(3)
        rows = torch.randn((VOCAB, WIDTH), generator=gen).bfloat16().double()
        rows[40] = rows[17]
        return rows
    pairs, scales = packed_rows()
    nibbles = torch.stack((pairs & 15, pairs >> 4), -1).reshape(VOCAB, WIDTH).long()
    table = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    return table[nibbles] * scales.double().repeat_interleave(16, 1) * 0.25


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """The 128x4 layout the engine's loader leaves as `weight_scale_interleaved`."""
    n, groups = scales.shape
    tall = -(-n // 128) * 128
    padded = torch.zeros((tall, groups), dtype=torch.uint8)
    padded[:n] = scales.view(torch.uint8)
    moved = padded.reshape(tall // 128, 4, 32, groups // 4, 4).permute(0, 3, 2, 1, 4)
    return moved.reshape(tall, groups).view(torch.float8_e4m3fn)


class Refuses:
    """A quantization method no test may call."""

    quant_mode = "w4a4"

    def apply(self, *_a: Any, **_k: Any) -> torch.Tensor:
        raise AssertionError("the logits were written")


def head_of(kind: str, first: int, end: int, *, padded: int = 0, tp_size: int = 1) -> Any:
    """Rows first..end of the vocabulary as one shard; padding rows hold larger values than any other."""
    if kind == "dense":
        head = heads.dense_head(exact_rows(kind)[first:end].bfloat16(), padded=padded)
        head.weight[end - first :] = 100.0
        head.shard_indices.org_vocab_start_index = first
        head.org_vocab_size, head.tp_size = VOCAB if tp_size > 1 else end - first, tp_size
        return head
    pairs, scales = packed_rows()
    pad = torch.full((padded, WIDTH // 2), 0x77, dtype=torch.uint8)
    tall = torch.full((padded, WIDTH // 16), 0x7E, dtype=torch.uint8).view(torch.float8_e4m3fn)
    rows = torch.zeros(end - first, WIDTH)
    extra = {"org_vocab_size": VOCAB, "tp_size": tp_size} if tp_size > 1 else {}
    head = heads.packed_head("nvfp4", rows, padded=padded, start=first, **extra)
    head.quant_method = type("ModelOptFp4LinearMethod", (Refuses,), {})()
    head.weight = torch.cat([pairs[first:end], pad])
    head.weight_scale_interleaved = swizzled(torch.cat([scales[first:end], tall]))
    head.alpha, head.input_scale_inv = torch.tensor(0.5), torch.tensor(0.5)
    return head


def ask(rank: int, world: int) -> dict[str, Any]:
    from sglang.srt.models import dflash

    def refuse(*_a: Any, **_k: Any) -> Any:
        raise AssertionError("the logits were written")

    dflash._radix_topk = refuse
    answers = {}
    for kind in ("dense", "nvfp4"):
        first, end = (0, VOCAB) if world == 1 else ((0, SPLIT), (SPLIT, VOCAB))[rank]
        head = head_of(kind, first, end, padded=10, tp_size=world)
        ids, values = dflash.DFlash2DraftModel.compute_candidates(
            heads.draft_model(head, TOP_K), hidden_states()
        )
        answers[kind] = {"ids": ids.tolist(), "values": values.tolist()}
    return answers


@pytest.mark.parametrize("world", [1, 2])
def test_candidates_without_logits(world, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("SGLANG_DFLASH_CANDIDATE_KERNEL", "all")
    answers = support.spawn_ranks(ask, world)
    assert all(answer == answers[0] for answer in answers)
    for kind, answer in answers[0].items():
        logits = hidden_states().double() @ exact_rows(kind).T
        rounded = logits.float().bfloat16()
        ids, values = torch.tensor(answer["ids"]), torch.tensor(answer["values"])
        assert torch.allclose(values, rounded.float().topk(TOP_K).values, rtol=2**-7, atol=1e-3), kind
        assert torch.allclose(values, logits.gather(1, ids).float(), rtol=2**-7, atol=1e-3), kind
        assert all(len(set(row)) == TOP_K for row in answer["ids"])
        if world == 1:
            tied = values.diff(dim=1) == 0
            assert (ids.diff(dim=1)[tied] > 0).all(), "ties go to the lower id"


def test_table_decides(engine, monkeypatch):
    from sglang.kernels.ops.speculative import head_candidates as kernel
    from sglang.srt.speculative import dflash_candidates as module

    sizes = {"block_n": 64, "block_r": 16, "block_k": 128, "warps": 4, "stages": 3, "programs": 8}
    shape = {"device": "GPU", "head": "dense", "layout": "linear", "vocabulary": 150, "width": 128, "k": 4}
    entries = [
        {**shape, "rows": 8, "winner": "kernel", "config": sizes},
        {**shape, "rows": 64, "winner": "engine", "config": sizes},
    ]
    monkeypatch.setattr(module, "ENTRIES", entries)
    head = kernel.Head(kernel.DENSE, torch.zeros((150, 128), dtype=torch.bfloat16), 150, 128)

    def ask(rows: int, k: int = 4, device: str = "GPU") -> Any:
        return module.measured_config(head, rows, k, device)

    assert ask(8) == ask(3) == kernel.Config(**sizes)
    assert ask(64) is ask(9) is ask(65) is ask(8, k=8) is ask(8, device="other") is None


@pytest.mark.parametrize("layout", ["nvfp4_marlin", "w4a16_marlin", "fp8_marlin", "ct_nvfp4", "gguf"])
def test_other_layouts_keep_the_engines_path(layout, engine):
    from sglang.srt.speculative import dflash_candidates as module

    head = heads.packed_head(layout, heads.rows_of(22, 64))
    assert module.held_head(head, rows=22, quantized=True) is None


def test_an_unknown_mode_is_named(engine, monkeypatch):
    from sglang.srt.speculative import dflash_candidates as module

    monkeypatch.setenv("SGLANG_DFLASH_CANDIDATE_KERNEL", "on")
    with pytest.raises(ValueError, match="SGLANG_DFLASH_CANDIDATE_KERNEL='on'"):
        module.kernel_candidates(hidden_states(), None, 4, num_org=4, quantized=False)


@pytest.mark.guard
def test_default_projects_and_selects(engine, monkeypatch):
    from sglang.srt.models import dflash

    called = []
    monkeypatch.setattr(
        dflash, "_radix_topk", lambda scores, k: called.append(scores.shape) or torch.topk(scores, k, dim=-1)
    )
    head = head_of("dense", 0, VOCAB, padded=10)
    dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, TOP_K), hidden_states())
    assert called == [(BATCH, VOCAB)]
