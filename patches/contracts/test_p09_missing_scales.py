"""P09: a scale that a ModelOpt checkpoint must supply and does not is an error that names the module.

The released engine serves such a checkpoint: the FP8 scales keep their placeholder of -3.4e38, NVFP4's
`weight_scale_2` is whatever the memory held. The weights here go through the engine's own loader; the
kernels' repacking after it is left out, since it needs a GPU.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as T

HIDDEN, VOCAB = T.HIDDEN, T.VOCAB
SHARDS = {
    "q_proj": ("qkv_proj", "q", 256),
    "k_proj": ("qkv_proj", "k", 128),
    "v_proj": ("qkv_proj", "v", 128),
    "gate_proj": ("gate_up_proj", 0, 512),
    "up_proj": ("gate_up_proj", 1, 512),
}
WHOLE = {"o_proj": 256, "lm_head": VOCAB}
FORMATS = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4_a16"}
SWITCH = "SGLANG_ALLOW_MISSING_SCALES"

pytestmark = pytest.mark.usefixtures("engine", "sm121", "no_repacking")


@pytest.fixture
def no_repacking(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.quantization import modelopt_quant as m

    for name in (
        "ModelOptFp8LinearMethod",
        "ModelOptFp4LinearMethod",
        "ModelOptNvFp4A16LinearMethod",
    ):
        monkeypatch.setattr(getattr(m, name), "process_weights_after_loading", lambda *_a: None)


def build(label: str, *, draft: bool = False) -> Any:
    """Every kind of quantized linear module, in one model with the engine's loading protocol."""
    import torch
    from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptMixedPrecisionConfig
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    names = ("qkv_proj", "gate_up_proj", "o_proj", "lm_head")
    quant = ModelOptMixedPrecisionConfig.from_config(
        {
            "quant_algo": "MIXED_PRECISION",
            "ignore": [],
            "packed_modules_mapping": {},
            "quantized_layers": {
                "anchor": {"quant_algo": "NVFP4", "group_size": 16},
                **{n: {"quant_algo": label, "group_size": 16} for n in names},
            },
        }
    )

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv_proj = QKVParallelLinear(
                HIDDEN, 64, 4, 2, bias=False, quant_config=quant, prefix="qkv_proj"
            )
            self.gate_up_proj = MergedColumnParallelLinear(
                HIDDEN, [512, 512], bias=False, quant_config=quant, prefix="gate_up_proj"
            )
            self.o_proj = RowParallelLinear(256, HIDDEN, bias=False, quant_config=quant, prefix="o_proj")
            self.lm_head = ParallelLMHead(VOCAB, HIDDEN, quant_config=quant, prefix="lm_head")

        def load_weights(self, weights: Any) -> None:
            params = dict(self.named_parameters())
            for name, tensor in weights:
                module, _, suffix = name.rpartition(".")
                fused, shard, _ = SHARDS.get(module, (module, None, None))
                if (param := params.get(f"{fused}.{suffix}")) is None:
                    continue
                if shard is None:
                    param.weight_loader(param, tensor)
                else:
                    param.weight_loader(param, tensor, shard)

    with support.default_dtype(torch.bfloat16):
        model = Model()
    if draft:
        model._is_draft_model = True
    return model


def checkpoint(label: str, *, fused: bool = False) -> dict[str, Any]:
    """A complete checkpoint for `build`, its projections apart or fused."""
    rows = {"qkv_proj": 512, "gate_up_proj": 1024} if fused else {n: s[2] for n, s in SHARDS.items()}
    return {
        f"{name}.{suffix}": tensor
        for name, n in {**rows, **WHOLE}.items()
        for suffix, tensor in T.packed_linear(FORMATS[label], n, HIDDEN).items()
    }


def load(model: Any, tensors: dict[str, Any]) -> Any:
    import torch
    from sglang.srt.model_loader.loader import DefaultModelLoader

    DefaultModelLoader.load_weights_and_postprocess(model, iter(tensors.items()), torch.device("cpu"))
    return model


def without(tensors: dict[str, Any], *names: str) -> dict[str, Any]:
    left = {k: v for k, v in tensors.items() if k not in names}
    assert len(left) == len(tensors) - len(names)
    return left


REQUIRED = [
    ("FP8", "o_proj.weight_scale", "o_proj.weight_scale"),
    ("FP8", "o_proj.input_scale", "o_proj.input_scale"),
    ("FP8", "lm_head.input_scale", "lm_head.input_scale"),
    ("FP8", "k_proj.weight_scale", r"qkv_proj.weight_scale \(shards \[1\]\)"),
    ("FP8", "up_proj.input_scale", r"gate_up_proj.input_scale \(shards \[1\]\)"),
    ("NVFP4", "o_proj.weight_scale_2", "o_proj.weight_scale_2"),
    ("NVFP4", "lm_head.weight_scale_2", "lm_head.weight_scale_2"),
    ("NVFP4", "v_proj.weight_scale_2", r"qkv_proj.weight_scale_2 \(shards \[2\]\)"),
    ("W4A16_NVFP4", "o_proj.weight_scale_2", "o_proj.weight_scale_2"),
    ("W4A16_NVFP4", "lm_head.weight_scale_2", "lm_head.weight_scale_2"),
    ("W4A16_NVFP4", "q_proj.weight_scale_2", r"qkv_proj.weight_scale_2 \(shards \[0\]\)"),
]


@pytest.mark.parametrize(("label", "tensor", "named"), REQUIRED)
def test_missing_scale_is_refused_by_name(label: str, tensor: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"supplies no value for {named}:"):
        load(build(label), without(checkpoint(label), tensor))


def test_every_module_is_named_up_to_a_limit() -> None:
    tensors = {k: v for k, v in checkpoint("FP8").items() if not k.endswith("_scale")}
    with pytest.raises(ValueError, match="supplies no value for") as refused:
        load(build("FP8"), tensors)
    for module in ("qkv_proj", "gate_up_proj", "o_proj", "lm_head"):
        assert f"{module}.weight_scale" in str(refused.value)
        assert f"{module}.input_scale" in str(refused.value)
    assert SWITCH in str(refused.value)


@pytest.mark.parametrize(
    ("label", "tensor"), [("FP8", "o_proj.input_scale"), ("NVFP4", "o_proj.weight_scale_2")]
)
def test_the_switch_turns_the_error_into_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, label: str, tensor: str
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    with caplog.at_level(logging.WARNING):
        load(build(label), without(checkpoint(label), tensor))
    assert [r for r in caplog.records if f"supplies no value for {tensor}" in r.getMessage()]


def test_default_activation_scale_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    tensors = {k: v for k, v in checkpoint("NVFP4").items() if not k.endswith("input_scale")}
    model = build("NVFP4")
    with caplog.at_level(logging.WARNING):
        load(model, tensors)
        load(model, tensors)
    said = [r.getMessage() for r in caplog.records if "default of 1.0" in r.getMessage()]
    assert len(said) == 1, said
    for module in ("qkv_proj", "gate_up_proj", "o_proj", "lm_head"):
        assert f"{module}.input_scale" in said[0]
    assert model.o_proj.input_scale.tolist() == [1.0]  # the value of old


def test_placeholder_of_the_global_scale_is_not_memory_garbage() -> None:
    import torch

    model = build("NVFP4")
    least = torch.finfo(torch.float32).min
    for module in (model.qkv_proj, model.gate_up_proj, model.o_proj, model.lm_head):
        assert set(module.weight_scale_2.tolist()) == {least}


# --- what must not be refused --------------------------------------------------------------------


def quiet(caplog: pytest.LogCaptureFixture) -> bool:
    return not [r for r in caplog.records if "supplies no" in r.getMessage()]


@pytest.mark.guard
@pytest.mark.parametrize("label", list(FORMATS))
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused in the checkpoint"])
def test_complete_checkpoint_loads_quietly(caplog: pytest.LogCaptureFixture, label: str, fused: bool) -> None:
    with caplog.at_level(logging.WARNING):
        model = load(build(label), checkpoint(label, fused=fused))
    assert quiet(caplog)
    scale = model.o_proj.weight_scale if label == "FP8" else model.o_proj.weight_scale_2
    assert scale.flatten().tolist() == pytest.approx([0.01])


@pytest.mark.guard
@pytest.mark.parametrize("label", list(FORMATS))
def test_weights_loaded_twice(label: str) -> None:
    model = load(build(label), checkpoint(label))
    load(model, checkpoint(label))
    # An update of some tensors finds the scales of the first load in place.
    some = {k: v for k, v in checkpoint(label).items() if k.endswith("_proj.weight")}
    load(model, some)


@pytest.mark.guard
@pytest.mark.parametrize("label", list(FORMATS))
def test_dummy_weights_have_no_placeholder_left(label: str) -> None:
    """`--load-format dummy` writes every scale, so its own loader needs no check."""
    import torch
    from sglang.srt.model_loader.weight_utils import initialize_dummy_weights

    model = build(label)
    initialize_dummy_weights(model)
    least = torch.finfo(torch.float32).min
    scales = [p for n, p in model.named_parameters() if n.endswith(("scale", "scale_2"))]
    assert scales
    assert not any(bool((p.float() == least).any()) for p in scales)


@pytest.mark.guard
def test_head_that_a_draft_borrows_is_not_asked_for() -> None:
    """An MTP block builds a head of its own, loads nothing into it and takes the target's."""
    tensors = {k: v for k, v in checkpoint("NVFP4").items() if not k.startswith("lm_head.")}
    load(build("NVFP4", draft=True), tensors)


def test_draft_layers_are_checked_and_its_head_is_known_for_a_draft(tiny: support.TinyModels) -> None:
    target = tiny.target(quant=T.mixed_quant())
    args = support.publish_args(target, speculative_algorithm="NEXTN")
    model, _, _ = support.build_model(args, draft_path=target)
    assert model._is_draft_model is True
    target_model, _, _ = support.build_model(support.publish_args(target))
    assert target_model._is_draft_model is False
    with pytest.raises(ValueError, match=r"o_proj\.weight_scale_2"):
        load(build("NVFP4", draft=True), without(checkpoint("NVFP4"), "o_proj.weight_scale_2"))


@pytest.mark.guard
def test_kv_scales_may_be_absent(tiny: support.TinyModels) -> None:
    model, _, _ = support.build_model(support.publish_args(tiny.target(quant=T.mixed_quant())))
    attention = [
        m
        for m in model.modules()
        if type(getattr(m, "quant_method", None)).__name__ == "ModelOptFp8KVCacheMethod"
    ]
    assert attention
    assert not [m for m in attention if getattr(m.quant_method, "required_scales", ())]


@pytest.mark.guard
def test_online_quantized_layers_have_nothing_to_miss() -> None:
    import torch
    from sglang.srt.layers.linear import RowParallelLinear
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.o_proj = RowParallelLinear(
                256, HIDDEN, bias=False, quant_config=Fp8Config(is_checkpoint_fp8_serialized=False)
            )
            self.o_proj.quant_method.process_weights_after_loading = lambda *_a: None

        def load_weights(self, weights: Any) -> None:
            for _, tensor in weights:
                self.o_proj.weight.weight_loader(self.o_proj.weight, tensor)

    load(Model(), {"o_proj.weight": torch.randn(HIDDEN, 256)})
