"""Property of the packed-head paths: candidates and greedy tokens equal a float64 reference.

Random vocabularies (padded, uneven, down to shards of padding alone), hidden sizes legal for NVFP4,
batches of 0 to 64 rows, TP 1, 2 and 4 over gloo, FP16 and BF16. The heads are the engine's own
ParallelLMHead, sharded and loaded by its own loader; only the GEMM is a dequantizing reference that
reads the loaded shard, because the real ones need a GPU.

Tolerance, per logit: half a unit in the last place of the head's output dtype, plus the bound of a
float32 dot product, `hidden_size * 2**-23 * sum |x||w|`. In the "exact" cases every product and sum is
exact in float32, so values must be equal to the last bit and a tie must go to the lowest id.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

from patches.contracts import support

WORLD = 4
CASES_PER_TP = 40
SEED = int(os.environ.get("SPARK_HEAD_SEED", "20261130"))
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
Failures = dict[str, list[str]]


def dequantize(codes: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor) -> torch.Tensor:
    """[V, H/2] packed E2M1, [V, H/16] E4M3 and one FP32 scale -> [V, H] float64, low nibble first."""
    nibbles = torch.stack([codes & 0xF, codes >> 4], dim=-1).flatten(1).long()
    values = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)[nibbles]
    return values * scale.double().repeat_interleave(16, dim=-1) * scale_2.double()


def draw_case(rng: random.Random, tp: int, exact: bool) -> dict[str, Any]:
    """Sizes and tensors of one case: the same on every rank."""
    top_k = rng.choice([1, 2, 4, 8, 16])
    vocab = rng.choice([rng.randint(1, 64), rng.randint(64, 300), rng.randint(300, 700)])
    hidden = 16 * rng.randint(1, 12)
    batch = rng.choice([0, 1, 2, rng.randint(3, 63), 64])
    gen = torch.Generator().manual_seed(rng.randrange(2**31))
    codes = torch.randint(0, 256, (vocab, hidden // 2), generator=gen).to(torch.uint8)
    if exact:
        scale = 2.0 ** torch.randint(-1, 2, (vocab, hidden // 16), generator=gen)
        x = torch.randint(-3, 4, (batch, hidden), generator=gen) / 4
        # Few distinct rows: maxima repeat inside shards and across them.
        pick = torch.arange(vocab) % rng.choice([2, 7, vocab])
        codes, scale = codes[pick], scale[pick]
    else:
        scale = torch.rand(vocab, hidden // 16, generator=gen) + 0.05
        x = torch.randn(batch, hidden, generator=gen)
    return {
        "name": f"tp={tp} vocab={vocab} hidden={hidden} batch={batch} top_k={top_k} exact={exact}",
        "exact": exact,
        "top_k": top_k,
        "vocab": vocab,
        "weight": codes,
        "weight_scale": scale.to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.0625),
        "x": x.to(rng.choice([torch.bfloat16, torch.float16])),
    }


def load_head(case: dict[str, Any]):
    """The engine's head of this rank, loaded; its method dequantizes what was loaded."""
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    config = ModelOptFp4Config(True, None, 16, [], {})
    with support.default_dtype(torch.bfloat16):
        head = ParallelLMHead(
            case["vocab"], case["weight"].shape[1] * 2, quant_config=config, prefix="lm_head"
        )
    for name in ("weight", "weight_scale", "weight_scale_2"):
        param = getattr(head, name)
        param.weight_loader(param, case[name])
    # Names the FlashInfer layout leaves on the layer; the gate asks for them.
    head.weight_scale_interleaved = head.weight_scale
    head.alpha = head.input_scale_inv = head.weight_scale_2
    rows = dequantize(head.weight.data, head.weight_scale.data, head.weight_scale_2.data).float()

    def apply(layer, x, bias=None):
        assert layer is head
        assert x.dtype in (torch.bfloat16, torch.float16)
        assert x.is_contiguous()
        assert bias is None
        return (x.float() @ rows.T).to(x.dtype)

    head.quant_method.apply = apply
    return head


def reference(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits [N, V] float64, tolerance [N, V]); exact cases are rounded as the head rounds them."""
    rows = dequantize(case["weight"], case["weight_scale"], case["weight_scale_2"])
    x = case["x"].double()
    logits = x @ rows.T
    if case["exact"]:
        return logits.to(case["x"].dtype).double(), torch.zeros_like(logits)
    half_ulp = torch.finfo(case["x"].dtype).eps / 2
    return logits, half_ulp * logits.abs() + rows.shape[1] * 2.0**-23 * (x.abs() @ rows.abs().T)


def check_candidates(case: dict[str, Any], ids: torch.Tensor, values: torch.Tensor) -> int:
    """Raise AssertionError where candidates differ from the reference; number of ids compared exactly."""
    logits, tolerance = reference(case)
    n, k = logits.shape[0], case["top_k"]
    assert ids.shape == values.shape == (n, k)
    if n == 0:
        return 0
    assert int(ids.min()) >= 0, "negative id"
    assert int(ids.max()) < case["vocab"], "id outside the vocabulary"
    assert all(len(set(row)) == k for row in ids.tolist()), "an id is proposed twice"
    off = (values.double() - logits.gather(-1, ids)).abs()
    assert bool((off <= tolerance.gather(-1, ids)).all()), f"value off its id's logit by {off.max():.3g}"
    slack = tolerance.max(dim=-1, keepdim=True).values
    best = logits.topk(min(k + 1, case["vocab"]), dim=-1)
    worst = (values.double() - best.values[:, :k]).abs()
    assert bool((worst <= slack).all()), f"not the k highest: off by {worst.max():.3g}"
    gap = torch.full((n, k + 1), float("inf"), dtype=torch.float64)
    gap[:, 1 : best.values.shape[1]] = best.values[:, :-1] - best.values[:, 1:]
    distinct = (gap[:, :k] > 2 * slack) & (gap[:, 1:] > 2 * slack)
    assert torch.equal(ids[distinct], best.indices[:, :k][distinct]), "a distinct value has another id"
    return int(distinct.sum())


def check_greedy(case: dict[str, Any], ids: torch.Tensor) -> int:
    """As check_candidates, for the one best token; exact cases take the lowest id of a tie."""
    logits, tolerance = reference(case)
    assert ids.shape == logits.shape[:1]
    if not ids.numel():
        return 0
    best = logits.max(dim=-1, keepdim=True).values
    slack = tolerance.max(dim=-1, keepdim=True).values
    assert int(ids.max()) < case["vocab"], "id outside the vocabulary"
    assert bool((logits.gather(-1, ids[:, None]) >= best - 2 * slack).all()), "not a maximum"
    near = logits >= best - 2 * slack
    if case["exact"]:
        near = near.cumsum(-1) == 1  # from the first maximum up to the next one
        first = near.int().argmax(-1)
        assert torch.equal(ids, first), "a tie did not go to the lowest id"
        return int(ids.numel())
    single = near.sum(-1) == 1
    assert torch.equal(ids[single], logits.argmax(-1)[single]), "a distinct maximum has another id"
    return int(single.sum())


def narrowest_shard(head, tp: int) -> int:
    return max(0, head.org_vocab_size - head.num_embeddings_per_partition * (tp - 1))


def run_cases(rank: int, world: int) -> dict[str, Any]:
    """All cases on this rank; failures by path, and how much was compared."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.models import dflash
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    from patches.contracts import heads

    torch.cuda.get_device_capability = lambda *_a, **_k: (12, 1)
    dflash._flashinfer_top_k = None
    failures: Failures = {"candidates": [], "greedy": []}
    compared = {"candidates": 0, "greedy": 0, "cases": 0, "refused_width": 0}
    digest: dict[str, dict[str, Any]] = {}
    for tp in (1, 2, 4):
        members = [list(range(i, i + tp)) for i in range(0, world, tp)]
        group = parallel_state.init_model_parallel_group(
            members,
            rank,
            "gloo",
            use_pynccl=False,
            use_custom_allreduce=False,
            use_mscclpp=False,
            use_torch_symm_mem_allreduce=False,
            group_name=f"property_tp{tp}",
        )
        rng = random.Random(SEED + tp)
        for index in range(CASES_PER_TP):
            case = draw_case(rng, tp, exact=index % 2 == 0)
            case["name"] = f"{index}: {case['name']}"
            compared["cases"] += 1
            answers = digest[f"{tp}/{index}"] = {}
            with parallel_state.patch_tensor_parallel_group(group, owns_attention=True):
                head = load_head(case)
                if narrowest_shard(head, tp) >= case["top_k"]:
                    try:
                        ids, values, _ = dflash.candidate_topk(case["x"], head, case["top_k"])
                        compared["candidates"] += check_candidates(case, ids, values)
                        answers["candidates"] = ids.tolist()
                    except Exception as e:
                        failures["candidates"].append(f"{case['name']}: {type(e).__name__}: {e}")
                else:
                    compared["refused_width"] += 1
                try:
                    worker = heads.dflash_worker(head)
                    method = DFlashWorkerV2._greedy_sample_from_quantized_head
                    worker._greedy_sample_from_quantized_head = method.__get__(worker)
                    ids = DFlashWorkerV2._greedy_sample_from_vocab_parallel_head(
                        worker, hidden_states=case["x"], lm_head=head, chunk_size=23
                    )
                    compared["greedy"] += check_greedy(case, ids)
                    answers["greedy"] = ids.tolist()
                except Exception as e:
                    failures["greedy"].append(f"{case['name']}: {type(e).__name__}: {e}")
    return {"failures": failures, "compared": compared, "digest": digest}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """Answers of four ranks, from one start of the processes."""
    return support.spawn_ranks(run_cases, WORLD, timeout=400)


@pytest.mark.guard
def test_selector_candidates_equal_the_float64_reference(ranks):
    for rank, result in enumerate(ranks):
        failures = result["failures"]["candidates"]
        assert not failures, f"seed {SEED}, rank {rank}, {len(failures)} cases, first: {failures[0]}"
        assert result["compared"]["candidates"] > 1000, result["compared"]
        assert result["compared"]["refused_width"], "no case had a shard narrower than top_k"


@pytest.mark.guard
def test_every_rank_proposes_the_same(ranks):
    for result in ranks[1:]:
        for key, answers in result["digest"].items():
            first = ranks[0]["digest"][key]
            assert answers == first, key


def test_dflash1_greedy_tokens_equal_the_float64_reference(ranks):
    for rank, result in enumerate(ranks):
        failures = result["failures"]["greedy"]
        assert not failures, f"seed {SEED}, rank {rank}, {len(failures)} cases, first: {failures[0]}"
        assert result["compared"]["greedy"] > 1000, result["compared"]
