"""The shared support of the contracts does what the contracts rely on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as tm

pytestmark = pytest.mark.engine


def shard_and_sum(rank: int, world: int, tag: str) -> tuple[int, float, str]:
    import torch
    from sglang.srt.distributed import get_tp_group
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    head = ParallelLMHead(tm.VOCAB, tm.HIDDEN)
    total = get_tp_group().all_reduce(torch.tensor([float(rank + 1)]))
    return head.shard_indices.org_vocab_start_index, float(total), tag


def fail_on_rank_one(rank: int, world: int) -> None:
    if rank == 1:
        raise ValueError("planted")
    import torch.distributed as dist

    dist.barrier()


def end_without_result(rank: int, world: int) -> None:
    os._exit(3)


def wait_forever(rank: int, world: int) -> None:
    import threading

    threading.Event().wait()


def test_ranks_share_groups_and_shard_the_vocabulary() -> None:
    assert support.spawn_ranks(shard_and_sum, 2, "x") == [(0, 3.0, "x"), (512, 3.0, "x")]


def test_a_failing_rank_is_named_with_its_own_error() -> None:
    with pytest.raises(support.RankError, match=r"rank 1 of 2: ValueError: planted"):
        support.spawn_ranks(fail_on_rank_one, 2)


def test_a_rank_that_dies_or_hangs_is_an_error() -> None:
    with pytest.raises(support.RankError, match="exit code 3"):
        support.spawn_ranks(end_without_result, 1, engine=False)
    with pytest.raises(support.RankError, match=r"ranks \[0\] gave no result within 1 s"):
        support.spawn_ranks(wait_forever, 1, engine=False, timeout=1.0)


@pytest.fixture
def draft(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    kind = request.param
    tiny = support.TinyModels(tmp_path)
    target, draft = tiny.target(), tiny.draft(kind=kind)
    support.init_engine()
    args = support.publish_args(
        target,
        speculative_algorithm="DSPARK" if kind == "dspark" else "DFLASH",
        speculative_draft_model_path=str(draft),
        speculative_draft_model_quantization="unquant",
    )
    model, _config, _quant = support.build_model(args, draft_path=draft)
    return kind, model


@pytest.mark.parametrize("draft", ["dflash", "dflash2", "dspark"], indirect=True)
def test_a_complete_draft_leaves_nothing_unread_or_unset(draft: Any) -> None:
    kind, model = draft
    # All at once: the patched loader checks completeness at the end of its first load.
    loaded = support.load_noting(model, tm.draft_tensors("bf16", kind=kind), one_by_one=False)
    assert (loaded.unread, loaded.unset, loaded.partial) == ([], [], [])


def test_missing_and_surplus_tensors_are_noted() -> None:
    """On a loader that guesses: unknown names are dropped, absent ones are not missed."""
    import torch

    class Guessing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = torch.nn.Parameter(torch.empty(4, 2))
            self.plain = torch.nn.Parameter(torch.empty(3))
            self.absent = torch.nn.Parameter(torch.empty(3))

        def load_weights(self, weights: Any) -> None:
            rows = {"q": slice(0, 2), "k": slice(2, 4)}
            for name, w in weights:
                if name in rows:
                    self.fused.data[rows[name]] = w
                elif name == "plain":
                    self.plain.data.copy_(w)

    tensors = {"q": torch.rand(2, 2), "plain": torch.rand(3), "nobody": torch.rand(2)}
    loaded = support.load_noting(Guessing(), tensors)
    assert loaded.unread == ["nobody"]
    assert loaded.unset == ["absent"]
    assert loaded.partial == ["fused"]


@pytest.mark.parametrize(
    ("quant", "found", "methods"),
    [
        (None, None, {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}),
        (tm.mixed_quant(), "modelopt_mixed", {"ModelOptFp4LinearMethod", "ModelOptFp8LinearMethod"}),
        (tm.uniform_nvfp4(), "modelopt_fp4", {"ModelOptFp4LinearMethod"}),
        (tm.mixed_quant(head="FP8", mlp="W4A16_NVFP4"), "modelopt_mixed", {"ModelOptNvFp4A16LinearMethod"}),
    ],
)
def test_targets_build_with_their_quantization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: Any, found: str | None, methods: set[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_a, **_k: (12, 1))
    support.init_engine()
    tiny = support.TinyModels(tmp_path)
    for text_only in (False, True):
        args = support.publish_args(tiny.target(f"t{text_only}", quant, text_only=text_only))
        model, config, _ = support.build_model(args)
        assert config.quantization == found
        if not text_only:  # the rules name `model.language_model.`, which the causal LM alone lacks
            assert methods <= set(support.methods_of(model).values())
