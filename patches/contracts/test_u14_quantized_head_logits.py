"""U14 (upstream): a quantized lm_head gets its ModelOpt method, and the target's logits run it.

Also that a scalar scale stored as `[]` or `[1]` loads alike, and that `ignore: null` is no ignore list.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from patches.contracts import heads, support

pytestmark = pytest.mark.usefixtures("engine", "sm121")

VOCAB, HIDDEN = 100, 32  # padded to 128 rows
METHODS = {
    "NVFP4": "ModelOptFp4LinearMethod",
    "W4A16_NVFP4": "ModelOptNvFp4A16LinearMethod",
    "FP8": "ModelOptFp8LinearMethod",
    "MXFP8": "Fp8LinearMethod",
}


def mixed(label: str | None, **fields):
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptMixedPrecisionConfig

    rules = {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    if label:
        rules["lm_head"] = {"quant_algo": label, "group_size": 16}
    config = {
        "quant_algo": "MIXED_PRECISION",
        "packed_modules_mapping": {},
        "quantized_layers": rules,
        **fields,
    }
    return ModelOptMixedPrecisionConfig.from_config(config)


def build(config):
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    with support.default_dtype(torch.bfloat16):
        return ParallelLMHead(VOCAB, HIDDEN, quant_config=config, prefix="lm_head")


@pytest.mark.parametrize("label", METHODS)
def test_mixed_rule_gives_the_head_its_method(label):
    assert type(build(mixed(label)).quant_method).__name__ == METHODS[label]


def test_head_without_a_rule_stays_dense():
    head = build(mixed(None))
    assert type(head.quant_method).__name__ == "UnquantizedLinearMethod"
    assert head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("ignore", [None, [], "absent"])
def test_null_ignore_is_an_empty_one(ignore):
    config = mixed("NVFP4", **({} if ignore == "absent" else {"ignore": ignore}))
    assert type(build(config).quant_method).__name__ == METHODS["NVFP4"]


def test_ignored_head_stays_dense():
    assert type(build(mixed("NVFP4", ignore=["lm_head"])).quant_method).__name__ == "UnquantizedLinearMethod"


@pytest.mark.parametrize("label", ["NVFP4", "W4A16_NVFP4", "FP8"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scalar_scales_load_in_both_shapes(label, shape):
    head = build(mixed(label))
    scales = {"weight_scale_2", "input_scale"} if "NVFP4" in label else {"weight_scale", "input_scale"}
    for index, name in enumerate(sorted(scales), start=1):
        param = getattr(head, name)
        param.weight_loader(param, torch.tensor(0.25 * index).reshape(shape))
        assert param.shape == (1,)
        assert float(param) == 0.25 * index


@pytest.mark.parametrize("label", ["NVFP4", "W4A16_NVFP4", "FP8"])
def test_padded_rows_are_zero_after_loading(label):
    head = build(mixed(label))
    head.weight.data.view(torch.uint8).fill_(0x35)
    rows = torch.full((VOCAB, head.weight.shape[1]), 1).to(head.weight.dtype)
    head.weight.weight_loader(head.weight, rows)
    assert torch.equal(head.weight[:VOCAB].float(), rows.float())
    assert not head.weight[VOCAB:].view(torch.uint8).any()


@pytest.mark.parametrize("layout", heads.ADMITTED_BEFORE)
def test_target_logits_run_the_quant_method(layout):
    from sglang.srt.layers.logits_processor import LogitsProcessor

    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(4, HIDDEN)
    head = heads.packed_head(layout, rows, padded=28)
    logits = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))._compute_lm_head(hidden, head)
    assert head.quant_method.inputs == [hidden]
    assert torch.equal(
        logits[:, :VOCAB].double(), (hidden.double() @ rows.double().T).to(hidden.dtype).double()
    )


def test_target_logits_of_a_dense_head_do_not():
    from sglang.srt.layers.logits_processor import LogitsProcessor

    rows, hidden = heads.rows_of(VOCAB, HIDDEN).bfloat16(), heads.hidden_of(4, HIDDEN)
    head = heads.dense_head(rows)
    logits = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))._compute_lm_head(hidden, head)
    assert torch.equal(logits, hidden @ rows.T)
    assert not head.quant_method.inputs
