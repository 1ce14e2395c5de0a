"""P03: quantized DFlash and DFlash2 drafts load, and their quantized layers are what runs.

Layouts: ModelOpt NVFP4, MIXED_PRECISION and FP8, compressed-tensors W4A16; `fc`, the convolutions'
and the selector's projections quantized or left dense, announced by the config or not. A BF16 draft
builds the same parameters of the same classes as before.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patches.contracts import support
from patches.contracts import tiny_models as T

pytestmark = pytest.mark.usefixtures("engine", "sm121")

DENSE = "UnquantizedLinearMethod"
AUXILIARY = ("*kernel_projection", "*hidden_projection")
EXCLUDED = tuple(f"layers.0.self_attn.{p}" for p in ("q_proj", "k_proj", "v_proj"))
CT_AUXILIARY = ("re:.*kernel_projection$", "re:.*hidden_projection$")


def build(tiny: Any, quant: Any = None, kind: str = "dflash2", **args: Any) -> Any:
    # A directory of its own: the engine caches configs by path.
    target, draft = (
        tiny.target(),
        tiny.draft("dense" if quant is None else "quantized", kind=kind, quant=quant),
    )
    published = support.publish_args(
        target, speculative_algorithm="DFLASH", speculative_draft_model_path=str(draft), **args
    )
    return support.build_model(published, draft_path=draft)[0]


def mixed(fc: str | None = None, aux: str | None = None, root: str = "") -> dict[str, Any]:
    """ModelOpt MIXED_PRECISION: NVFP4 attention and MLP, labels of `fc` and the projections as given."""
    quant = T.mixed_draft_quant()
    label = {"quant_algo": "NVFP4", "group_size": 16}
    layers = {root + name: rule for name, rule in quant["quantized_layers"].items()}
    if fc:
        layers[f"{root}fc"] = dict(label)
    if aux:
        layers[f"{root}candidate_selector.hidden_projection"] = dict(label)
        for i in range(T.DRAFT_LAYERS):
            for conv in ("attention_conv", "mlp_conv"):
                layers[f"{root}layers.{i}.{conv}.kernel_projection"] = dict(label)
    return {**quant, "quantized_layers": layers}


# name -> (quantization_config, format of the tensors, fc quantized, projections quantized)
LAYOUTS: dict[str, tuple[Any, str, bool, bool]] = {
    "nvfp4, fc quantized": (T.flat_nvfp4(ignore=AUXILIARY), "nvfp4", True, False),
    "nvfp4, all quantized": (T.flat_nvfp4(ignore=()), "nvfp4", True, True),
    "nvfp4, fc dense but not excluded": (T.flat_nvfp4(ignore=("lm_head",)), "nvfp4", False, False),
    "nvfp4, one qkv excluded": (T.flat_nvfp4(ignore=("fc", *AUXILIARY, *EXCLUDED)), "nvfp4", False, False),
    "mixed, fc dense": (mixed(), "nvfp4", False, False),
    "mixed, fc quantized": (mixed(fc="NVFP4"), "nvfp4", True, False),
    "mixed, all quantized": (mixed(fc="NVFP4", aux="NVFP4"), "nvfp4", True, True),
    "mixed, rules under model.": (mixed(fc="NVFP4", root="model."), "nvfp4", True, False),
    "fp8, fc quantized": (T.modelopt_fp8(ignore=AUXILIARY), "fp8", True, False),
    "fp8, all quantized": (T.modelopt_fp8(), "fp8", True, True),
    "fp8, fc dense but not excluded": (T.modelopt_fp8(), "fp8", False, False),
    "w4a16, fc quantized": (T.compressed_w4a16(ignore=CT_AUXILIARY), "ct4", True, False),
    "w4a16, all quantized": (T.compressed_w4a16(ignore=()), "ct4", True, True),
    "w4a16, fc dense but not ignored": (T.compressed_w4a16(ignore=()), "ct4", False, False),
}
# What 0.5.23 loads already: nothing but attention and MLP is quantized, and prefixes do not matter.
GUARDS = (
    "nvfp4, fc dense but not excluded",
    "w4a16, fc dense but not ignored",
    "fp8, fc dense but not excluded",
)


def tensors_of(layout: str, kind: str = "dflash2") -> dict[str, torch.Tensor]:
    _, fmt, fc, aux = LAYOUTS[layout]
    tensors = T.draft_tensors(fmt, kind=kind, quant_fc=fc, quant_conv=aux)
    if layout == "nvfp4, one qkv excluded":
        plain = T.draft_tensors("bf16", kind=kind)
        tensors = {n: t for n, t in tensors.items() if not n.startswith(EXCLUDED)}
        tensors |= {f"{n}.weight": plain[f"{n}.weight"] for n in EXCLUDED}
    return tensors


def load(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Load all at once; every parameter that the model ends up with was written whole.

    Packed bytes may equal the sentinel by chance, so uint8 counts only when nothing came at all; a
    projection that the loader rebuilt dense is a new parameter, outside these accounts.
    """
    built = dict(model.named_parameters())
    loaded = support.load_noting(model, tensors, one_by_one=False)
    kept = {n for n, p in model.named_parameters() if p is built.get(n)}
    unset = kept & set(loaded.unset)
    assert not {n for n in unset if not n.endswith((".k_scale", ".v_scale"))}
    assert not {n for n in kept & set(loaded.partial) if built[n].dtype != torch.uint8}
    for name, param in model.named_parameters():
        if name not in kept:
            assert torch.equal(param.data, tensors[name]), name


def check(tiny: Any, layout: str, kind: str) -> None:
    quant, _, fc, aux = LAYOUTS[layout]
    model = build(tiny, quant, kind)
    load(model, tensors_of(layout, kind))
    methods = support.methods_of(model)
    assert (methods.get("fc", DENSE) != DENSE) == fc
    for name, method in methods.items():
        if name.endswith(("kernel_projection", "hidden_projection")):
            assert (method != DENSE) == aux, (name, method)
        elif name.endswith(("qkv_proj", "o_proj", "gate_up_proj", "down_proj")):
            whole = layout == "nvfp4, one qkv excluded" and name == "layers.0.self_attn.qkv_proj"
            assert (method == DENSE) == whole, (name, method)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in GUARDS])
def test_a_quantized_dflash2_draft_loads(tiny: Any, layout: str) -> None:
    check(tiny, layout, "dflash2")


@pytest.mark.parametrize(
    "layout", ["nvfp4, fc quantized", "mixed, fc dense", "fp8, fc quantized", "w4a16, fc quantized"]
)
def test_a_quantized_dflash1_draft_loads(tiny: Any, layout: str) -> None:
    check(tiny, layout, "dflash")


@pytest.mark.guard
@pytest.mark.parametrize("layout", GUARDS)
def test_dense_projections_need_no_exclude_list(tiny: Any, layout: str) -> None:
    """Published NVFP4 drafts quantize attention and MLP alone, whatever their config lists."""
    check(tiny, layout, "dflash2")


def test_names_under_model_load_too(tiny: Any) -> None:
    layout = "mixed, rules under model."
    model = build(tiny, LAYOUTS[layout][0])
    tensors = {f"model.{n}": t for n, t in tensors_of(layout).items()}
    load(model, tensors)
    assert support.methods_of(model)["fc"] != DENSE


def test_the_packed_bytes_of_fc_arrive(tiny: Any) -> None:
    layout = "nvfp4, fc quantized"
    model, tensors = build(tiny, LAYOUTS[layout][0]), tensors_of(layout)
    load(model, tensors)
    assert torch.equal(model.fc.weight.data, tensors["fc.weight"])
    assert torch.equal(model.fc.weight_scale.data.float(), tensors["fc.weight_scale"].float())
    assert float(model.fc.weight_scale_2) == float(tensors["fc.weight_scale_2"])


@pytest.mark.guard
def test_fc_of_another_width_is_still_refused(tiny: Any) -> None:
    layout = "nvfp4, fc quantized"
    model, tensors = build(tiny, LAYOUTS[layout][0]), tensors_of(layout)
    tensors |= {f"fc.{s}": t for s, t in T.packed_linear("nvfp4", T.HIDDEN, 3 * T.HIDDEN).items()}
    with pytest.raises(ValueError, match=r"fc.weight shape mismatch.*\(256, 768\)|\(256, 384\)"):
        support.load_noting(model, tensors, one_by_one=False)


def test_kv_cache_scales_of_a_draft_arrive(tiny: Any) -> None:
    layout = "nvfp4, fc quantized"
    quant = {
        **LAYOUTS[layout][0],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    }
    model, tensors = build(tiny, quant), tensors_of(layout)
    for i in range(T.DRAFT_LAYERS):
        tensors[f"layers.{i}.self_attn.k_proj.k_scale"] = torch.tensor(0.5 + i)
        tensors[f"layers.{i}.self_attn.v_proj.v_scale"] = torch.tensor(2.5 + i)
    load(model, tensors)
    attention = [layer.self_attn.attn for layer in model.layers]
    assert [(float(a.k_scale), float(a.v_scale)) for a in attention] == [(0.5, 2.5), (1.5, 3.5)]


def fp8_as_dense(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The BF16 checkpoint an FP8 one stands for."""
    out = {}
    for name, t in tensors.items():
        if name.endswith(("weight_scale", "input_scale")):
            continue
        scale = tensors.get(f"{name}_scale")
        out[name] = t if scale is None else (t.float() * scale).to(torch.bfloat16)
    return out


@pytest.fixture
def fp8_reference(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Stand in for the FP8 GEMM: dequantize and multiply; keeps the shapes it was given."""
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8LinearMethod

    seen: list[tuple[int, ...]] = []

    def apply(_self: Any, layer: Any, x: torch.Tensor, _bias: Any = None) -> torch.Tensor:
        seen.append(tuple(x.shape))
        weight = (layer.weight.float() * layer.weight_scale.max()).to(x.dtype)
        return nn.functional.linear(x, weight)

    monkeypatch.setattr(ModelOptFp8LinearMethod, "apply", apply)
    return seen


def test_quantized_projections_are_what_runs(tiny: Any, fp8_reference: list[tuple[int, ...]]) -> None:
    """Context projection, convolution and lattice of an FP8 draft equal its dequantized twin's."""
    tensors = tensors_of("fp8, all quantized")
    quantized, dense = build(tiny, T.modelopt_fp8()), build(tiny)
    load(quantized, tensors)
    load(dense, fp8_as_dense(tensors))
    context = torch.randn(8, 2 * T.HIDDEN).to(torch.bfloat16)
    block = torch.randn(8, T.HIDDEN).to(torch.bfloat16)
    pred = torch.randn(2, 7, T.HIDDEN).to(torch.bfloat16)
    ids = torch.randint(0, T.VOCAB, (2, 7, 16))
    unary = torch.randn(2, 7, 16)
    results = []
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        for model in (quantized, dense):
            lattice = model.candidate_selector.build_lattice(
                candidate_ids=ids,
                unary_logits=unary,
                hidden_states=pred,
                anchor_token_ids=torch.tensor([3, 5]),
            )
            conv = model.layers[1].mlp_conv.prepare(block)
            results.append([model.fc(context), lattice, *conv])
    fc, *rest = results[0]
    assert torch.equal(fc[0], results[1][0])
    for got, want in zip(rest, results[1][1:], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert all(len(shape) == 2 for shape in fp8_reference), "quantized GEMMs take [tokens, features]"


@pytest.mark.guard
def test_quantized_keys_and_values_are_projected_eagerly(tiny: Any, fp8_reference: Any) -> None:
    """No weight slice of a packed layer: the fused KV path is off and the eager one is right."""
    from sglang.srt.speculative.dflash_utils import can_dflash_use_fused_qkv_proj

    layout = "fp8, fc quantized"
    tensors = tensors_of(layout)
    model = build(tiny, LAYOUTS[layout][0])
    load(model, tensors)
    attention = model.layers[0].self_attn
    eligible, why = can_dflash_use_fused_qkv_proj(attention.qkv_proj)
    assert not eligible
    assert "ModelOptFp8LinearMethod" in why
    x = torch.randn(4, T.HIDDEN).to(torch.bfloat16)
    k, v = attention.kv_proj_only(x)
    scale = max(
        float(tensors[f"layers.0.self_attn.{p}.weight_scale"]) for p in ("q_proj", "k_proj", "v_proj")
    )
    for got, p in ((k, "k_proj"), (v, "v_proj")):
        weight = (tensors[f"layers.0.self_attn.{p}.weight"].float() * scale).to(torch.bfloat16)
        torch.testing.assert_close(got, nn.functional.linear(x, weight), rtol=2e-2, atol=2e-2)


def bf16_names(kind: str) -> set[str]:
    fused = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    fused |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    parts = (n.split(".") for n in T.draft_tensors("bf16", kind=kind))
    return {".".join(fused.get(p, p) for p in name) for name in parts}


@pytest.mark.guard
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("inherited", [None, "fp8"])
def test_a_bf16_draft_builds_what_it_built_before(tiny: Any, kind: str, inherited: str | None) -> None:
    """Also under load-time quantization, which the target passes on: `fc` stays dense."""
    extra = {"quantization": inherited} if inherited else {}
    model = build(tiny, None, kind, **extra)
    params = {n: p for n, p in model.named_parameters() if not n.endswith((".k_scale", ".v_scale"))}
    assert set(params) == bf16_names(kind)
    dense = [
        m for n, m in model.named_modules() if n.endswith(("fc", "kernel_projection", "hidden_projection"))
    ]
    assert {type(m) for m in dense} == {nn.Linear}
    assert all(p.dtype is torch.bfloat16 for p in params.values())
    load(model, T.draft_tensors("bf16", kind=kind))
