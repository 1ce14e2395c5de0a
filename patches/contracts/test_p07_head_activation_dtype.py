"""P07: draft hidden states reach a packed head as its kernel takes them: FP16 or BF16, contiguous.

Packed kernels quantize or read 16-bit activations; the dense path casts to the dtype of the head's
matrix, the packed paths handed on whatever the draft produced. A contiguous FP16/BF16 tensor must pass
as the same object: no copy, no rounding.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from patches.contracts import heads

pytestmark = pytest.mark.usefixtures("engine")

VOCAB, HIDDEN, BATCH = 12, 16, 5
LAYOUTS = ("nvfp4", "nvfp4_marlin", "w4a16_marlin", "fp8", "ct_fp8")


def dflash1(hidden: torch.Tensor, head, monkeypatch) -> torch.Tensor:
    """Greedy ids of DFlash1 through the worker's own method."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    worker = heads.dflash_worker(head)
    worker._greedy_sample_from_quantized_head = DFlashWorkerV2._greedy_sample_from_quantized_head.__get__(
        worker
    )
    return DFlashWorkerV2._greedy_sample_from_vocab_parallel_head(worker, hidden_states=hidden, lm_head=head)


def dflash2(hidden: torch.Tensor, head, monkeypatch) -> torch.Tensor:
    """Best candidate of DFlash2's selector."""
    from sglang.srt.models import dflash

    monkeypatch.setattr(dflash, "_flashinfer_top_k", None)
    ids, _ = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, 2), hidden)
    return ids[:, 0]


def dspark(hidden: torch.Tensor, head, monkeypatch) -> torch.Tensor:
    from sglang.srt.models.dspark import project_through_lm_head

    return project_through_lm_head(hidden, head)[:, :VOCAB].argmax(-1)


DRAFTS = [dflash1, dflash2, dspark]


def distinct_rows() -> torch.Tensor:
    """Rows such that row i of `one_hot_hidden` has its only maximum at token i + 3."""
    rows = torch.zeros(VOCAB, HIDDEN)
    rows[torch.arange(BATCH) + 3, torch.arange(BATCH)] = 2.0
    return rows


def one_hot_hidden(dtype: torch.dtype) -> torch.Tensor:
    return torch.eye(HIDDEN)[:BATCH].to(dtype)


EXPECTED = torch.arange(BATCH) + 3


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model_dtype", [torch.bfloat16, torch.float16])
def test_float32_hidden_reaches_the_kernel_in_the_model_dtype(draft, layout, model_dtype, monkeypatch):
    name = "orig_dtype" if layout.endswith("fp8") else "params_dtype"
    head = heads.packed_head(layout, distinct_rows(), padded=4, **{name: model_dtype})
    assert torch.equal(draft(one_hot_hidden(torch.float32), head, monkeypatch), EXPECTED)
    (given,) = head.quant_method.inputs
    assert given.dtype == model_dtype


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("declared", [{}, {"orig_dtype": torch.float32}])
def test_a_16_bit_format_gets_bfloat16_where_the_model_dtype_is_none_of_its_own(draft, declared, monkeypatch):
    """What every ParallelLMHead carries, its quantization config, lists the dtypes the kernels take."""
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8Config

    head = heads.packed_head("fp8", distinct_rows(), quant_config=ModelOptFp8Config, **declared)
    assert torch.equal(draft(one_hot_hidden(torch.float32), head, monkeypatch), EXPECTED)
    (given,) = head.quant_method.inputs
    assert given.dtype == torch.bfloat16


@pytest.mark.parametrize("draft", DRAFTS)
def test_hidden_states_of_a_two_position_block_are_made_contiguous(draft, monkeypatch):
    """Block size 2 proposes every second row: a strided view, which FP4 quantization refuses."""
    block = torch.zeros(BATCH, 2, HIDDEN, dtype=torch.bfloat16)
    block[:, 1] = one_hot_hidden(torch.bfloat16)
    proposed = block[:, 1:, :].reshape(-1, HIDDEN)
    assert not proposed.is_contiguous()
    head = heads.packed_head("nvfp4", distinct_rows())
    assert torch.equal(draft(proposed, head, monkeypatch), EXPECTED)
    assert head.quant_method.inputs[0].is_contiguous(), "fp4_quantize checks that its input is contiguous"


# --- the old path --------------------------------------------------------------------------------


@pytest.mark.guard
@pytest.mark.parametrize("draft", [dflash2, dspark])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_16_bit_hidden_states_pass_as_the_same_tensor(draft, dtype, layout, monkeypatch):
    head = heads.packed_head(layout, distinct_rows(), padded=4, params_dtype=torch.bfloat16)
    hidden = one_hot_hidden(dtype)
    assert torch.equal(draft(hidden, head, monkeypatch), EXPECTED)
    (given,) = head.quant_method.inputs
    assert given is hidden


@pytest.mark.guard
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dflash1_reads_the_draft_output_in_place(dtype, monkeypatch):
    """DFlash1 walks chunks of the batch, so it hands on views: the same memory, not a copy."""
    head, hidden = heads.packed_head("nvfp4", distinct_rows()), one_hot_hidden(dtype)
    assert torch.equal(dflash1(hidden, head, monkeypatch), EXPECTED)
    (given,) = head.quant_method.inputs
    assert given.dtype == dtype
    assert given.data_ptr() == hidden.data_ptr()


@pytest.mark.guard
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("told", [True, False])
def test_float32_is_kept_for_a_format_that_lists_it_and_for_a_head_that_tells_nothing(
    draft, told, monkeypatch
):
    """bitsandbytes and GGUF list float32; upstream's own tests drive bare heads with float32."""
    from sglang.srt.layers.quantization.bitsandbytes import BitsAndBytesConfig

    class Fp32Method(heads.PackedMethod):
        def apply(self, layer, x, bias=None):
            self.inputs.append(x)
            return x @ self.rows.T

    head = SimpleNamespace(
        weight=torch.zeros(4, 1, dtype=torch.uint8),
        quant_method=Fp32Method(distinct_rows(), 0),
        org_vocab_size=VOCAB,
        **({"quant_config": BitsAndBytesConfig()} if told else {}),
    )
    assert torch.equal(draft(one_hot_hidden(torch.float32), head, monkeypatch), EXPECTED)
    (given,) = head.quant_method.inputs
    assert given.dtype == torch.float32


@pytest.mark.guard
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_dense_head_never_meets_its_quant_method(draft, dtype, monkeypatch):
    head = heads.dense_head(distinct_rows().to(dtype), padded=4)
    worker_buffers(monkeypatch)
    assert torch.equal(draft(one_hot_hidden(torch.float32), head, monkeypatch), EXPECTED)
    assert not head.quant_method.inputs


def worker_buffers(monkeypatch) -> None:
    """The dense greedy path keeps reduction buffers on the worker."""
    original = heads.dflash_worker

    def with_buffers(head, **kw):
        worker = original(head, **kw)
        worker._draft_greedy_local_cap = 0
        worker._draft_greedy_local_max_buf = worker._draft_greedy_local_arg_buf = None
        return worker

    monkeypatch.setattr(heads, "dflash_worker", with_buffers)
