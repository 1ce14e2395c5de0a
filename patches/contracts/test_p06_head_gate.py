"""P06: one gate decides for every packed head, whether or not its values lie under `.weight`.

compressed-tensors NVFP4 keeps `weight_packed`, GGUF keeps `qweight`, FP8 Marlin repacks to int32 and
drops the activation scale. DFlash1, DFlash2, DSpark and the logits processor must all send such a head
through its own quantization method.
"""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace

import pytest
import torch

from patches.contracts import heads, support

pytestmark = pytest.mark.usefixtures("engine")

VOCAB, PADDED, HIDDEN = 10, 6, 16


def gate(head, method=None) -> bool:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    return should_apply_lm_head_quant_method(head, method or head.quant_method)


def reference_topk(hidden: torch.Tensor, rows: torch.Tensor, k: int):
    logits = (hidden.double() @ rows.double().T).to(hidden.dtype).float()
    return torch.topk(logits, k, dim=-1).values, logits


def test_the_gate_has_one_definition():
    import sglang.srt.layers.logits_processor as module

    names = [n.name for n in ast.parse(inspect.getsource(module)).body if isinstance(n, ast.FunctionDef)]
    for name in ("should_apply_lm_head_quant_method", "_has_lm_head_runtime_attrs"):
        assert names.count(name) == 1, f"{name} is defined {names.count(name)} times: a patch to one is lost"


@pytest.mark.parametrize("layout", heads.NEWLY_ADMITTED)
def test_gate_admits_every_packed_layout(layout):
    assert gate(heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN), padded=PADDED))


def test_gate_admits_the_head_that_fp8_marlin_leaves_behind(sm121, monkeypatch):
    """The engine's own loading path, with only the GPU kernels replaced by their result's shape."""
    from sglang.srt.layers.quantization import marlin_utils_fp8 as marlin
    from sglang.srt.layers.quantization import modelopt_quant
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8Config
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    monkeypatch.setattr(
        modelopt_quant, "requantize_with_max_scale", lambda weight, scale, widths: (scale.max(), weight.data)
    )
    monkeypatch.setattr(marlin, "marlin_make_workspace", lambda device: torch.zeros(4, dtype=torch.int32))
    monkeypatch.setattr(
        marlin,
        "gptq_marlin_repack",
        lambda b_q_weight, perm, size_k, size_n, num_bits: torch.zeros(
            size_k // 16, size_n * 4, dtype=torch.int32
        ),
        raising=False,  # imported only where there is CUDA
    )
    with support.default_dtype(torch.bfloat16):
        head = ParallelLMHead(
            128, 64, quant_config=ModelOptFp8Config(True, packed_modules_mapping={}), prefix="lm_head"
        )
    for param in (head.weight, head.weight_scale, head.input_scale):
        param.weight_loader(param, torch.ones(param.shape).to(param.dtype))
    head.quant_method.use_marlin = True
    head.quant_method.process_weights_after_loading(head)
    assert head.weight.dtype == torch.int32
    assert not hasattr(head, "input_scale")
    assert gate(head), "a Marlin-repacked FP8 head is taken for a dense one and its int32 words multiplied"


def test_gate_admits_a_real_compressed_tensors_nvfp4_head(sm121):
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    group = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    config = CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["re:.*lm_head"],
                    "weights": {**group, "dynamic": False},
                    "input_activations": {**group, "dynamic": "local"},
                }
            },
            "ignore": [],
        }
    )
    with support.default_dtype(torch.bfloat16):
        head = ParallelLMHead(128, 64, quant_config=config, prefix="lm_head")
    assert hasattr(head, "weight_packed")
    assert not hasattr(head, "weight")
    assert gate(head)


@pytest.mark.parametrize("layout", heads.NEWLY_ADMITTED)
def test_dflash2_candidates_come_through_the_quant_method(layout, monkeypatch):
    from sglang.srt.models import dflash

    monkeypatch.setattr(dflash, "_flashinfer_top_k", None)
    rows, hidden, k = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(5, HIDDEN), 4
    head = heads.packed_head(layout, rows, padded=PADDED)
    ids, values = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, k), hidden)
    expected, logits = reference_topk(hidden, rows, k)
    assert torch.equal(values, expected)
    assert torch.equal(logits.gather(-1, ids), values)
    assert int(ids.max()) < VOCAB


@pytest.mark.parametrize("layout", heads.NEWLY_ADMITTED)
def test_dspark_projects_through_the_quant_method(layout):
    from sglang.srt.models.dspark import project_through_lm_head

    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(5, HIDDEN)
    logits = project_through_lm_head(hidden, heads.packed_head(layout, rows, padded=PADDED))
    assert torch.equal(
        logits[:, :VOCAB].double(), (hidden.double() @ rows.double().T).to(hidden.dtype).double()
    )


def test_deepseek_dspark_projects_a_head_without_weight(monkeypatch):
    from sglang.srt.models import deepseek_v4_dspark as dsv4

    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(3, HIDDEN)
    model = SimpleNamespace(
        lm_head=heads.packed_head("ct_nvfp4", rows),
        stages=[SimpleNamespace(norm=lambda x: x)],
        _use_fp32_lm_head=True,
        _opt_markov_w2_tp_shard=True,
    )
    logits = dsv4.DeepseekV4ForCausalLMDSpark._logits_from_x_post_hc(model, hidden)
    assert torch.equal(logits.double(), (hidden.double() @ rows.double().T).to(hidden.dtype).double())


@pytest.mark.parametrize("layout", ["fp8", "ct_nvfp4", "gguf"])
def test_dspark_vocab_gather_has_the_activation_dtype(layout, monkeypatch):
    """Under TP the step logits are gathered in the dtype of `logits + bias`, not in that of packed bytes."""
    from sglang.srt.models import dspark

    seen = {}
    monkeypatch.setattr(dspark, "make_vocab_gather", lambda group, **kw: seen.update(kw))
    monkeypatch.setattr(
        dspark,
        "get_parallel",
        lambda: SimpleNamespace(tp_group=SimpleNamespace(world_size=2, rank_in_group=1)),
    )
    with support.default_dtype(torch.bfloat16):
        markov = dspark.VanillaMarkov(vocab_size=2 * VOCAB, markov_rank=4)
    head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN), org_vocab_size=2 * VOCAB, tp_size=2)
    markov.configure_tp_shard(lm_head=head, prefer_nvlink=False)
    assert seen["dtype"] == torch.bfloat16


@pytest.mark.parametrize("layout", heads.NEWLY_ADMITTED)
def test_worker_folds_the_selector_over_every_packed_head(layout, monkeypatch):
    from sglang.srt.speculative import dflash_worker_v2 as worker_module

    built = {}
    monkeypatch.setattr(worker_module, "_SelectorDraftSampler", lambda **kw: built.update(kw) or "sampler")
    monkeypatch.setattr(worker_module, "get_exec", exec_with_batch_sizes)
    head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN), padded=PADDED)
    worker = heads.dflash_worker(head, selector=object())
    sampler = worker_module.DFlashWorkerV2._maybe_build_draft_sampler(worker)
    assert sampler == "sampler", "the selector over this head stays eager"
    assert worker.draft_model.lm_head is head


def exec_with_batch_sizes():
    decode = SimpleNamespace(bs=[1, 2])
    return SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode)))


# --- the old path --------------------------------------------------------------------------------


@pytest.mark.guard
@pytest.mark.parametrize("layout", heads.ADMITTED_BEFORE)
def test_layouts_admitted_before_still_are(layout):
    assert gate(heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN), padded=PADDED))


@pytest.mark.guard
@pytest.mark.parametrize(
    ("layout", "missing"),
    [
        (name, missing)
        for name in ("nvfp4", "nvfp4_marlin", "w4a16_marlin", "fp8")
        for missing in heads.LAYOUTS[name][1]
    ],
)
def test_incomplete_modelopt_state_is_refused(layout, missing):
    head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN))
    delattr(head, missing)
    assert not gate(head)


@pytest.mark.guard
@pytest.mark.parametrize(
    "method", ["ModelOptFp4LinearMethod", "ModelOptNvFp4A16LinearMethod", "ModelOptFp8LinearMethod"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_stale_modelopt_method_on_a_dense_head_is_refused(method, dtype):
    """A draft may share the target's dense tensor and keep its own method."""
    layout = next(name for name, (cls, _) in heads.LAYOUTS.items() if cls == method)
    head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN))
    head.weight = torch.zeros(VOCAB, HIDDEN, dtype=dtype)
    assert not gate(head)


@pytest.mark.guard
def test_modelopt_methods_never_take_a_head_without_weight():
    for layout in ("nvfp4", "nvfp4_marlin", "w4a16_marlin", "fp8", "fp8_marlin"):
        head = heads.packed_head(layout, heads.rows_of(VOCAB, HIDDEN), weight_packed=torch.zeros(1))
        del head.weight
        assert not gate(head)


@pytest.mark.guard
@pytest.mark.parametrize(
    "name", ["UnquantizedEmbeddingMethod", "UnquantizedLinearMethod", "PackWeightMethod"]
)
def test_unquantized_methods_are_refused(name):
    method = type(name, (heads.PackedMethod,), {})(heads.rows_of(VOCAB, HIDDEN), 0)
    for held in ({"weight": torch.zeros(2, 2)}, {"weight_packed": torch.zeros(2, 2)}, {}):
        assert not gate(SimpleNamespace(**held), method)


@pytest.mark.guard
def test_a_head_with_nothing_packed_is_refused():
    method = heads.packed_head("ct_nvfp4", heads.rows_of(VOCAB, HIDDEN)).quant_method
    assert not gate(SimpleNamespace(), method)
    assert not gate(SimpleNamespace(weight_packed=torch.zeros(1)), SimpleNamespace())


@pytest.mark.guard
def test_dspark_gather_dtype_of_a_dense_head_is_its_own(monkeypatch):
    from sglang.srt.models import dspark

    seen = {}
    monkeypatch.setattr(dspark, "make_vocab_gather", lambda group, **kw: seen.update(kw))
    monkeypatch.setattr(
        dspark,
        "get_parallel",
        lambda: SimpleNamespace(tp_group=SimpleNamespace(world_size=2, rank_in_group=1)),
    )
    with support.default_dtype(torch.bfloat16):
        markov = dspark.VanillaMarkov(vocab_size=2 * VOCAB, markov_rank=4)
    head = heads.packed_head("fp8", heads.rows_of(VOCAB, HIDDEN), org_vocab_size=2 * VOCAB, tp_size=2)
    head.weight = torch.zeros(VOCAB, HIDDEN, dtype=torch.float32)
    markov.configure_tp_shard(lm_head=head, prefer_nvlink=False)
    assert seen["dtype"] == torch.float32


def logits_of(head, hidden, **settings):
    from sglang.srt.layers.logits_processor import LogitsProcessor

    processor = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))
    for name, value in settings.items():
        setattr(processor, name, value)
    return processor._compute_lm_head(hidden, head)


@pytest.mark.guard
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_of_a_dense_head_are_one_matmul(dtype):
    rows, hidden = heads.rows_of(VOCAB, HIDDEN).to(dtype), heads.hidden_of(4, HIDDEN, dtype)
    head = heads.dense_head(rows, padded=PADDED)
    assert torch.equal(logits_of(head, hidden), torch.matmul(hidden, head.weight.T))
    assert not head.quant_method.inputs


@pytest.mark.guard
def test_target_logits_of_a_head_without_weight_keep_their_fp32_switch():
    """--enable-fp32-lm-head hands a GGUF head float32; the wider gate must not take that away."""
    rows, hidden = heads.rows_of(VOCAB, HIDDEN), heads.hidden_of(4, HIDDEN)
    head = heads.packed_head("gguf", rows)
    assert logits_of(head, hidden).shape == (4, VOCAB)
    assert head.quant_method.inputs[-1] is hidden
    with pytest.raises(TypeError, match="float32"):
        logits_of(head, hidden, use_fp32_lm_head=True)


@pytest.mark.guard
def test_dense_candidates_read_the_head_matrix_itself(monkeypatch):
    from sglang.srt.models import dflash

    monkeypatch.setattr(dflash, "_flashinfer_top_k", None)
    rows, hidden = heads.rows_of(VOCAB, HIDDEN).bfloat16(), heads.hidden_of(4, HIDDEN)
    head = heads.dense_head(rows, padded=PADDED)
    ids, values = dflash.DFlash2DraftModel.compute_candidates(heads.draft_model(head, 3), hidden)
    expected = torch.topk(hidden @ rows.T, 3, dim=-1)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(values, expected.values.float())
    assert not head.quant_method.inputs
