"""Every rule of the pair check: the good pair passes, and each fault is found, named and mended."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from launch.check import Case, Finding, Verdict, evaluate
from launch.checkpoint import Facts
from launch.quantmap import QuantMap, Tensor, read_quant_map, tensor_faults
from tests.hub.model27b import DFLASH2, draft, preset, target


def run(
    t: Facts | None = None,
    d: Facts | None = None,
    engine: dict[str, Any] | None = None,
    *,
    bake: bool = False,
    **changes: Any,
) -> list[Finding]:
    p = preset(**changes)
    return evaluate(Case(p, engine or {}, t or target(), (d or draft()) if p.draft else None, bake))


def only(findings: list[Finding], rule: str) -> Finding:
    """The one finding of `rule` that is not a PASS."""
    found = [f for f in findings if f.rule == rule and f.verdict is not Verdict.PASS]
    assert len(found) == 1, findings
    assert found[0].key
    assert found[0].mend
    return found[0]


def with_flash(**changes: Any) -> Facts:
    config = copy.deepcopy(DFLASH2)
    config["dflash_config"] |= changes
    return draft(config)


def with_draft(**changes: Any) -> Facts:
    return draft({**copy.deepcopy(DFLASH2), **changes})


def with_tensors(facts: Facts, change: dict[str, Tensor | None]) -> Facts:
    tensors = {**facts.tensors, **{k: v for k, v in change.items() if v is not None}}
    for name, value in change.items():
        if value is None:
            del tensors[name]
    return dataclasses.replace(facts, tensors=tensors)


def test_the_good_pair_passes_every_rule():
    findings = run()
    assert {f.verdict for f in findings} == {Verdict.PASS}, findings
    rules = {f.rule for f in findings}
    assert rules >= {"architecture", "quantization", "head class", "kv cache", "tensors", "licence", "draft class",
                     "hidden size", "vocabulary", "target layers", "mask token", "block size", "draft quantization",
                     "rope", "selector"}  # fmt: skip
    assert any("208 FP8, 193 NVFP4" in f.detail for f in findings)


@pytest.mark.parametrize(
    ("facts", "rule", "text"),
    [
        (with_draft(hidden_size=4096), "hidden size", "draft 4096, target 5120"),
        (with_draft(vocab_size=202_048), "vocabulary", "draft 202048, target 248320"),
        (with_draft(num_target_layers=48), "target layers", "trained on 48, the target has 64"),
        (with_flash(target_layer_ids=[5, 19, 33, 47, 64]), "target layers", "[64] cannot be tapped"),
        (with_flash(target_layer_ids=[5, 19, 33, 47, 63]), "target layers", "[63] cannot be tapped"),
        (with_flash(target_layer_ids=[5, 5, 33, 47, 61]), "target layers", "repeated"),
        (with_flash(mask_token_id=248_320), "mask token", "not inside the vocabulary"),
        (with_flash(mask_token_id=248_077), "mask token", "is the mask of DSPARK drafts"),
        (with_flash(mask_token_id=248_044), "mask token", "end or padding token"),
        (with_flash(block_size=2), "block size", "8 tokens from a block of 2"),
        (with_draft(architectures=["DFlash9"]), "draft class", "not in the engine's registry"),
        (with_draft(architectures=["DSparkDraftModel"]), "draft class", "belongs to DSPARK"),
        (with_draft(final_logit_softcapping=20.0), "logits", "soft-cap"),
        (with_draft(output_multiplier=0.5), "logits", "output multiplier"),
        (with_flash(selector_rank=None), "selector", "missing: selector_rank"),
        (with_flash(selector_top_k=300_000), "selector", "exceeds the vocabulary"),
    ],
)  # fmt: skip
def test_a_draft_that_does_not_fit_fails(facts, rule, text):
    finding = only(run(d=facts), rule)
    assert finding.verdict is Verdict.FAIL
    assert text in finding.detail


def test_a_padded_vocabulary_is_a_warning():
    t = target()
    t.config["text_config"]["vocab_size"] = 248_300  # type: ignore[index]
    geometry = {**preset().target.geometry.model_dump(), "vocab_size": 248_300}
    findings = run(t, target={"geometry": geometry})
    assert only(findings, "vocabulary").verdict is Verdict.WARN


def test_sixteen_tokens_from_block_eight_are_allowed_and_seventeen_are_not():
    assert not [
        f for f in run(draft={"tokens": 16}) if f.rule == "block size" and f.verdict is not Verdict.PASS
    ]
    assert "write at most 16" in only(run(draft={"tokens": 17}), "block size").mend


def test_dspark_takes_gamma_and_the_anchor():
    config = {**copy.deepcopy(DFLASH2), "architectures": ["DSparkDraftModel"], "block_size": 7}
    config["dflash_config"] = {"mask_token_id": 248_077, "target_layer_ids": [4, 16, 28, 40, 52]}
    spec = {"algorithm": "DSPARK", "block_size": 7}
    assert not [f for f in run(d=draft(config), draft={**spec, "tokens": 8}) if f.verdict is Verdict.FAIL]
    assert only(run(d=draft(config), draft={**spec, "tokens": 7}), "block size").mend == "write 8"


def test_weights_that_do_not_belong_to_the_config():
    d = with_tensors(draft(), {"fc.weight": Tensor("BF16", (5120, 4 * 5120))})
    assert "expected [5120, 25600]" in only(run(d=d), "target layers").detail


def nvfp4_draft(fc: str = "BF16", algorithm: str = "NVFP4") -> Facts:
    mixed = {"layers.0.mlp.gate_proj": {"quant_algo": "NVFP4"}} if algorithm == "MIXED_PRECISION" else {}
    quantization = {"quant_method": "modelopt", "quant_algo": algorithm, "quantized_layers": mixed}
    packed = Tensor("U8", (17_408, 2560))
    fc_weight = Tensor(fc, (5120, 25_600 if fc == "BF16" else 12_800))
    d = draft({**copy.deepcopy(DFLASH2), "quantization_config": quantization})
    return with_tensors(d, {"layers.0.mlp.gate_proj.weight": packed, "fc.weight": fc_weight})


def test_draft_quantization_must_be_what_the_draft_is():
    finding = only(run(d=nvfp4_draft()), "draft quantization")
    assert 'quantization = "modelopt_fp4"' in finding.mend
    assert not [
        f
        for f in run(d=nvfp4_draft(), draft={"quantization": "modelopt_fp4", "tokens": 16})
        if f.verdict is Verdict.FAIL
    ]
    finding = only(run(draft={"quantization": "modelopt_fp4"}), "draft quantization")
    assert 'quantization = "unquant"' in finding.mend


def test_a_quantized_fc_needs_its_patch():
    spec = {"quantization": "modelopt_fp4"}
    assert "fc is quantized" in only(run(d=nvfp4_draft("U8"), draft=spec), "draft quantization").detail
    assert not [
        f
        for f in run(d=nvfp4_draft("U8"), draft=spec, needs_patches=["P03"])
        if f.rule == "draft quantization" and f.verdict is not Verdict.PASS
    ]
    mixed = run(d=nvfp4_draft(algorithm="MIXED_PRECISION"), draft={"quantization": "modelopt_mixed"})
    assert "MIXED_PRECISION draft does not load" in only(mixed, "draft quantization").detail


def test_a_stretched_target_needs_p04_and_a_plain_draft():
    yarn = {
        "json_model_override_args": {"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}}
    }
    assert only(run(engine=yarn), "rope").key == "needs_patches"
    assert not [
        f
        for f in run(engine=yarn, needs_patches=["P04"])
        if f.rule == "rope" and f.verdict is not Verdict.PASS
    ]
    assert "exceeds the native 262144" in only(run(engine={"context_length": 524_288}), "rope").detail
    scaled = with_draft(rope_parameters={"rope_type": "yarn", "factor": 32.0})
    assert only(run(d=scaled), "rope").verdict is Verdict.WARN
    assert only(run(d=scaled, engine=yarn, needs_patches=["P04"]), "rope").verdict is Verdict.FAIL


def test_a_swapped_head_is_named():
    bf16 = target(head=None)
    finding = only(run(bf16), "head class")
    assert (finding.verdict, finding.key) == (Verdict.FAIL, "target.expects.lm_head")
    assert "lm_head is BF16" in finding.detail
    lying = with_tensors(target(), {"lm_head.input_scale": None})
    assert "the map says NVFP4, the tensors are W4A16_NVFP4" in only(run(lying), "head class").detail


def test_a_checkpoint_without_kv_format_must_be_told():
    null = target(kv=False)
    spec = {"expects": {"kv_cache": "none", "lm_head": "NVFP4", "quantization": "modelopt_mixed"}}
    finding = only(run(null, target=spec), "kv cache")
    assert finding.key == "engine.kv_cache_dtype"
    assert 'kv_cache_dtype = "fp8_e4m3"' in finding.mend
    assert not [
        f for f in run(null, engine={"kv_cache_dtype": "fp8_e4m3"}, target=spec) if f.verdict is Verdict.FAIL
    ]
    assert "declares none" in next(f for f in run(null) if f.key == "target.expects.kv_cache").detail


def test_nvfp4_kv_is_a_warning():
    assert only(run(engine={"kv_cache_dtype": "nvfp4"}), "kv cache").verdict is Verdict.WARN


LAYER = "model.language_model.layers.3"
Q_PROJ = f"{LAYER}.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "text", "verdict"),
    [
        ({"lm_head.weight_scale_2": None}, "lm_head: weight_scale_2 is missing", Verdict.FAIL),
        ({"lm_head.weight_scale": None}, "weight_scale (one FP8 scale per group) is missing", Verdict.FAIL),
        (
            {"lm_head.weight_scale": Tensor("F8_E4M3", (248_320, 160))},
            "the tensor has group size 32",
            Verdict.FAIL,
        ),
        ({f"{LAYER}.mlp.up_proj.input_scale": None}, "takes 1.0", Verdict.WARN),
        ({f"{Q_PROJ}.input_scale": None}, "garbage", Verdict.FAIL),
        ({f"{Q_PROJ}.weight": Tensor("BF16", (5120, 5120))}, "but the weight is BF16", Verdict.FAIL),
        ({f"{LAYER}.mlp.up_proj.weight": None}, f"there is no {LAYER}.mlp.up_proj.weight", Verdict.FAIL),
        ({f"{LAYER}.extra.weight": Tensor("U8", (8, 8))}, "the map does not name", Verdict.FAIL),
    ],
)
def test_tensors_that_deny_the_map(change, text, verdict):
    finding = only(run(with_tensors(target(), change)), "tensors")
    assert text in finding.detail
    assert finding.verdict is verdict


def test_labels_the_engine_drops():
    findings = run(target(mlp="NVFP4_AWQ"))
    finding = only(findings, "quantization labels")
    assert (finding.key, finding.verdict) == ("needs_patches", Verdict.FAIL)
    assert "192 modules are NVFP4_AWQ" in finding.detail
    assert (
        only(run(target(mlp="NVFP4_AWQ"), needs_patches=["P05"]), "quantization labels").verdict
        is Verdict.WARN
    )


def test_an_inherited_quantization_flag_is_refused():
    assert (
        only(run(engine={"quantization": "modelopt_fp4"}), "quantization flag").key == "engine.quantization"
    )


def test_the_text_only_class_loses_a_quantized_head():
    t = target()
    t.config["architectures"] = ["Qwen3_5ForCausalLM"]  # type: ignore[index]
    details = [f.detail for f in run(t) if f.rule == "architecture" and f.verdict is Verdict.FAIL]
    assert any("drops the scales" in d for d in details)


def test_geometry_that_contradicts_the_config():
    geometry = {**preset().target.geometry.model_dump(), "kv_heads": 8}
    finding = only(run(target={"geometry": geometry}), "geometry")
    assert (finding.key, finding.mend) == ("target.geometry.kv_heads", "write 4 (now 8)")


def test_a_non_commercial_draft_may_be_mounted_but_not_baked():
    d = dataclasses.replace(draft(), license="cc-by-nc-nd-4.0")
    spec = {"license": "cc-by-nc-nd-4.0"}
    finding = only(run(d=d, draft=spec), "licence")
    assert finding.verdict is Verdict.WARN
    assert "mount it, never bake it" in finding.detail
    assert "no commercial use" in finding.detail
    assert only(run(d=d, draft=spec, bake=True), "licence").verdict is Verdict.FAIL


def test_a_licence_that_changed_on_the_hub():
    t = dataclasses.replace(target(), license="other")
    assert any("the hub says other, the preset apache-2.0" in f.detail for f in run(t))


def test_known_bad_explains_itself():
    finding = only(
        run(status="known-bad", why="bad on SGLang (sglang #34895)", instead="better"), "known bad"
    )
    assert (finding.verdict, finding.mend) == (Verdict.FAIL, "use better")


def test_compressed_tensors_is_recognised():
    t = target()
    t.config["quantization_config"] = {"quant_method": "compressed-tensors"}  # type: ignore[index]
    findings = run(t, target={"expects": {"quantization": "compressed-tensors"}})
    assert any("34895" in f.detail for f in findings)


def test_python_in_a_repository_is_said():
    d = dataclasses.replace(draft(), files={"config.json": 1, "modeling_x.py": 9})
    assert "modeling_x.py" in only(run(d=d), "remote code").detail
    assert only(run(engine={"trust_remote_code": True}), "remote code").key == "engine.trust_remote_code"


def test_a_lock_that_disagrees_fails():
    t = dataclasses.replace(target(), lock_disagrees=("w: sha256 b, the lock says a",))
    assert only(run(t), "lock").verdict is Verdict.FAIL


def test_mtp_needs_its_tensors():
    spec = {"algorithm": "NEXTN", "in_target": True, "tokens": 4, "quantization": "unquant"}
    p = preset()
    data = p.model_dump(by_alias=True, mode="json", exclude_none=True)
    data["draft"] = spec
    mtp = type(p).model_validate(data)
    assert next(f for f in evaluate(Case(mtp, {}, target())) if f.rule == "mtp").verdict is Verdict.PASS
    bare = with_tensors(target(), {"mtp.fc.weight": None})
    assert next(f for f in evaluate(Case(mtp, {}, bare)) if f.rule == "mtp").verdict is Verdict.FAIL


def test_maps_are_read_as_the_engine_reads_them():
    assert read_quant_map({}, None) == QuantMap()
    uniform = read_quant_map({}, {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}})
    assert (uniform.method, uniform.head) == ("modelopt_fp4", "BF16")
    assert read_quant_map({}, {"quantization": {"quant_algo": "NVFP4"}}).head == "NVFP4"
    fp8 = read_quant_map(
        {},
        {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}}},
    )
    assert fp8.method == "w4afp8"
    string = read_quant_map(
        {
            "quantization_config": {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "kv_cache_scheme": "NVFP4",
            }
        },
        None,
    )
    assert (string.kv, string.kv_is_string) == ("NVFP4", True)
    assert list(tensor_faults(QuantMap(), {})) == []
