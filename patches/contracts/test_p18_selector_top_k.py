"""P18: a selector_top_k wider than some shard's vocabulary rows is refused when the worker starts.

A packed head cannot be cropped, so its padded columns are masked and stay in the tensor: a top-k wider
than the rows picks them, as token ids the model does not have. Under TP a rank whose shard is too
narrow fails alone, inside the kernel, while its peers wait in the gather.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from patches.contracts import support

pytestmark = pytest.mark.usefixtures("engine", "sm121")


class StartedAnywayError(Exception):
    """The worker went on to its next step."""


def nvfp4_head(vocab: int, *, rank: int = 0, tp_size: int = 1):
    """The target's own ParallelLMHead as `rank` of `tp_size` builds it (rows padded to 64)."""
    from sglang.srt.distributed.parallel_state import patch_tensor_parallel_group
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    config = ModelOptFp4Config(True, None, 16, [], {})
    group = SimpleNamespace(rank_in_group=rank, world_size=tp_size)
    with (
        support.default_dtype(torch.bfloat16),
        patch_tensor_parallel_group(group, owns_attention=True),
    ):
        return ParallelLMHead(vocab, 64, quant_config=config, prefix="lm_head")


def start_worker(lm_head, monkeypatch, *, top_k: int | None = None, lilicorr: int | None = None) -> None:
    """Run the worker's own __init__ to the step after the draft model is there; raise StartedAnyway."""
    from sglang.srt.speculative import dflash_worker_v2 as module

    draft_model = SimpleNamespace(
        candidate_selector=None if top_k is None else SimpleNamespace(top_k=top_k),
        lilicorr=None if lilicorr is None else SimpleNamespace(candidate_topk=lilicorr),
    )
    runner = SimpleNamespace(model_config=SimpleNamespace(hf_config=None))
    bundle = SimpleNamespace(draft_worker=None, draft_model_runner=runner, draft_model=draft_model)
    target_runner = SimpleNamespace(
        model=SimpleNamespace(lm_head=lm_head),
        model_config=None,
        spec_algorithm=None,
        spec_aux_config=SimpleNamespace(draft_model_config=None),
    )

    def next_step(**_kw):
        raise StartedAnywayError

    for name, value in {
        "get_dp_tp_group": lambda: None,
        "SpecTpSync": lambda _group: None,
        "check_simulate_acc_token_mode": lambda: None,
        "model_draft_parallel_spec": lambda *_a, **_k: None,
        "resolve_draft_parallel_layout": lambda *_a, **_k: None,
        "draft_pp_context": nullcontext,
        "draft_tp_context": lambda _layout: nullcontext(),
        "build_draft_tp_worker": lambda **_k: bundle,
        "resolve_sampling_enabled": lambda **_k: False,
        "parse_dflash_draft_config": next_step,
    }.items():
        monkeypatch.setattr(module, name, value)
    module.DFlashWorkerV2(
        server_args=None,
        gpu_id=0,
        nccl_port=0,
        target_worker=SimpleNamespace(model_runner=target_runner, device="cpu"),
    )


def refusal(lm_head, monkeypatch, **kw) -> str:
    try:
        start_worker(lm_head, monkeypatch, **kw)
    except ValueError as e:
        return str(e)
    except StartedAnywayError:
        pytest.fail(f"the worker started with {kw}: padded rows become candidates")
    raise AssertionError("unreachable")


def test_top_k_above_the_vocabulary_is_refused(monkeypatch):
    message = refusal(nvfp4_head(40), monkeypatch, top_k=41)
    for part in ("selector_top_k=41", "40 vocabulary rows", "tp_size=1"):
        assert part in message


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_refuses_what_the_narrowest_shard_cannot_give(rank, monkeypatch):
    """130 rows over two ranks are 96 and 34: rank 0 alone would not notice."""
    message = refusal(nvfp4_head(130, rank=rank, tp_size=2), monkeypatch, top_k=35)
    for part in ("selector_top_k=35", "34 vocabulary rows", "tp_size=2"):
        assert part in message


@pytest.mark.parametrize("rank", range(4))
def test_a_shard_with_padding_only_is_refused(rank, monkeypatch):
    """65 rows over four ranks of 32: the last rank holds nothing but padding."""
    head = nvfp4_head(65, rank=rank, tp_size=4)
    assert "0 vocabulary rows" in refusal(head, monkeypatch, top_k=1)


def test_lilicorr_candidates_are_held_to_the_same(monkeypatch):
    assert "lilicorr_candidate_topk=64" in refusal(nvfp4_head(40), monkeypatch, lilicorr=64)


# --- the old path --------------------------------------------------------------------------------


@pytest.mark.guard
@pytest.mark.parametrize(
    ("vocab", "tp_size", "top_k"),
    [(40, 1, 40), (130, 2, 34), (248320, 1, 16), (248320, 2, 16), (1000, 4, 16)],
)
def test_a_width_every_shard_can_give_starts(vocab, tp_size, top_k, monkeypatch):
    for rank in range(tp_size):
        head = nvfp4_head(vocab, rank=rank, tp_size=tp_size)
        assert head.shard_indices.num_org_elements >= top_k
        with pytest.raises(StartedAnywayError):
            start_worker(head, monkeypatch, top_k=top_k)


@pytest.mark.guard
@pytest.mark.parametrize("lm_head", [None, SimpleNamespace(weight=torch.zeros(4, 4))])
def test_a_draft_without_candidates_and_a_head_without_geometry_start(lm_head, monkeypatch):
    with pytest.raises(StartedAnywayError):
        start_worker(lm_head, monkeypatch)
    with pytest.raises(StartedAnywayError):
        start_worker(lm_head, monkeypatch, top_k=16)
