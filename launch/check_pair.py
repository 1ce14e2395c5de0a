"""Rules for a draft and the target it goes with (facts 2.2, "Compatibility rules"). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launch.check import Case, Finding, fail, ok, warn
from launch.checkpoint import Facts
from launch.quantmap import read_quant_map

# Draft classes in the model registry of SGLang 0.5.23 (EntryClass of models/dflash.py and models/*dspark*.py),
# and the algorithm each belongs to.
DRAFT_CLASSES = {
    "DFlashDraftModel": "DFLASH",
    "DFlash2DraftModel": "DFLASH",
    "DFlashLagunaForCausalLM": "DFLASH",
    "MuseGlimmerAssistantModel": "DFLASH",
    "DSparkDraftModel": "DSPARK",
    "Qwen3DSparkModel": "DSPARK",
    "LingDSparkModel": "DSPARK",
    "Lfm2DSparkDraftModel": "DSPARK",
    "DSparkMiniMaxDraftModel": "DSPARK",
    "DeepseekV4ForCausalLMDSpark": "DSPARK",
}
# Mask tokens of the Qwen3.8-27B drafts, vocabulary 248,320 (facts 2.2): one family must not carry the other's.
MASKS = {("DFLASH", 248_320): 248_070, ("DSPARK", 248_320): 248_077}
# Block-8 weights run at depth 16, acceptance rising all the way (facts 3.2, sxuff sweep): twice the block.
EXTRAPOLATION = 2
SOFT_CAPS = ("final_logit_softcapping", "logit_softcap", "logits_soft_cap")
MULTIPLIERS = ("output_multiplier", "output_multiplier_scale", "logits_scaling", "logit_scale")


def pair_rules(c: Case) -> Iterator[Finding]:
    """All rules about the draft; for a preset without one, one line that says so."""
    spec = c.preset.draft
    if spec is None:
        yield ok("draft", "none: control arm", "draft")
        return
    if spec.in_target:
        yield from _mtp(c)
        return
    if c.draft is None:
        yield fail(
            "draft", "the draft's configuration could not be read", "draft.repo", "run check again online"
        )
        return
    for rule in (_class, _shapes, _taps, _mask, _block, _quantization, _rope, _logits, _selector, _files):
        yield from rule(c, c.draft)


def _flash(draft: Facts) -> Mapping[str, Any]:
    inner = draft.config.get("dflash_config") or draft.config.get("dspark_config")
    return inner if isinstance(inner, Mapping) else {}


def _get(draft: Facts, name: str) -> Any:
    return _flash(draft).get(name, draft.config.get(name))


def _class(c: Case, d: Facts) -> Iterator[Finding]:
    assert c.preset.draft is not None
    algorithm = c.preset.draft.algorithm
    known = [a for a in d.architectures if a in DRAFT_CLASSES]
    if not known:
        yield fail("draft class", f"{list(d.architectures)} is not in the engine's registry", "draft.repo",
                   f"use a draft of class {', '.join(k for k, v in DRAFT_CLASSES.items() if v == algorithm)[:90]}")  # fmt: skip
    elif DRAFT_CLASSES[known[0]] != algorithm:
        yield fail("draft class", f"{known[0]} belongs to {DRAFT_CLASSES[known[0]]}", "draft.algorithm",
                   f'write algorithm = "{DRAFT_CLASSES[known[0]]}"')  # fmt: skip
    else:
        yield ok("draft class", f"{known[0]}, {algorithm}", "draft.algorithm")


def _shapes(c: Case, d: Facts) -> Iterator[Finding]:
    mine, theirs = d.text.get("hidden_size"), c.target.text.get("hidden_size")
    if mine != theirs:
        yield fail(
            "hidden size",
            f"draft {mine}, target {theirs}",
            "draft.repo",
            "use the draft trained for this target",
        )
    else:
        yield ok("hidden size", f"{mine}", "draft.repo")
    mine, theirs = d.text.get("vocab_size"), c.target.text.get("vocab_size")
    if not isinstance(mine, int) or not isinstance(theirs, int) or mine < theirs:
        yield fail(
            "vocabulary",
            f"draft {mine}, target {theirs}",
            "draft.repo",
            "use the draft trained for this target",
        )
    elif mine == theirs:
        yield ok("vocabulary", f"{mine}", "draft.repo")
    elif mine == -(-theirs // 64) * 64:
        yield warn("vocabulary", f"draft {mine} is target {theirs} padded to 64", "draft.repo",
                   "the engine must mask the tail (0.5.19 and later do)")  # fmt: skip
    else:
        yield fail(
            "vocabulary",
            f"draft {mine}, target {theirs}",
            "draft.repo",
            "use the draft trained for this target",
        )


def _taps(c: Case, d: Facts) -> Iterator[Finding]:
    layers, said = c.target.text.get("num_hidden_layers"), d.text.get("num_target_layers")
    if said is not None and said != layers:
        yield fail("target layers", f"the draft was trained on {said}, the target has {layers}", "draft.repo",
                   "use the draft trained for this target")  # fmt: skip
    taps = _get(d, "target_layer_ids")
    if not isinstance(taps, list) or not taps or not isinstance(layers, int):
        yield fail(
            "target layers", "target_layer_ids is missing", "draft.repo", "use a whole draft checkpoint"
        )
        return
    # The engine hooks the layer after, so the last layer cannot be tapped (fixtures, trap 4).
    bad = [t for t in taps if not isinstance(t, int) or not 0 <= t < layers - 1]
    if bad or len(set(taps)) != len(taps):
        yield fail("target layers", f"target_layer_ids {taps}: {bad or 'repeated'} cannot be tapped in {layers} layers",
                   "draft.repo", "use the draft trained for this target")  # fmt: skip
    else:
        yield ok("target layers", f"{taps} of {layers}", "draft.repo")
    fc, hidden = d.tensors.get("fc.weight"), d.text.get("hidden_size")
    width = c.target.text.get("hidden_size")
    if fc and fc.dtype in ("BF16", "F16", "F32") and fc.shape != (hidden, len(taps) * (width or 0)):
        yield fail("target layers", f"fc.weight is {list(fc.shape)}, expected {[hidden, len(taps) * (width or 0)]}",
                   "draft.repo", "config and weights of the draft do not belong together")  # fmt: skip


def _mask(c: Case, d: Facts) -> Iterator[Finding]:
    assert c.preset.draft is not None
    mask, vocab, algorithm = (
        _get(d, "mask_token_id"),
        c.target.text.get("vocab_size"),
        c.preset.draft.algorithm,
    )
    if mask is None and algorithm == "DSPARK":
        return
    if not isinstance(mask, int) or not isinstance(vocab, int) or not 0 <= mask < vocab:
        yield fail(
            "mask token", f"{mask} is not inside the vocabulary of {vocab}", "draft.repo", "use another draft"
        )
        return
    others = {m: a for (a, v), m in MASKS.items() if v == vocab and a != algorithm}
    stops = {c.target.text.get(k) for k in ("eos_token_id", "bos_token_id", "pad_token_id")}
    if mask in others:
        yield fail(
            "mask token",
            f"{mask} is the mask of {others[mask]} drafts",
            "draft.algorithm",
            "use the right pair",
        )
    elif mask in stops:
        yield fail(
            "mask token",
            f"{mask} is also an end or padding token of the target",
            "draft.repo",
            "use another draft",
        )
    else:
        yield ok("mask token", f"{mask}", "draft.repo")


def _block(c: Case, d: Facts) -> Iterator[Finding]:
    assert c.preset.draft is not None
    block, tokens = _get(d, "block_size"), c.preset.draft.tokens
    if not isinstance(block, int) or block < 1:
        yield fail("block size", "block_size is missing", "draft.repo", "use a whole draft checkpoint")
        return
    declared = c.preset.draft.block_size
    if declared is not None and declared != block:
        yield fail(
            "block size", f"config.json says {block}", "draft.block_size", f"write {block} (now {declared})"
        )
    if c.preset.draft.algorithm == "DSPARK":
        # gamma drafted and the verified anchor; arg_groups/speculative_hook.py refuses anything else
        if tokens == block + 1:
            yield ok("block size", f"gamma {block} and the anchor: {tokens} tokens", "draft.tokens")
        else:
            yield fail(
                "block size", f"{tokens} tokens with gamma {block}", "draft.tokens", f"write {block + 1}"
            )
    elif tokens <= block:
        yield ok("block size", f"{tokens} tokens of a block of {block}", "draft.tokens")
    elif tokens <= EXTRAPOLATION * block:
        detail = (
            f"{tokens} tokens from weights trained at {block}: measured to help up to {EXTRAPOLATION * block}"
        )
        yield ok("block size", f"{detail} (sxuff)", "draft.tokens")
    else:
        detail = f"{tokens} tokens from a block of {block}"
        yield fail("block size", detail, "draft.tokens", f"write at most {EXTRAPOLATION * block}")


def _quantization(c: Case, d: Facts) -> Iterator[Finding]:
    assert c.preset.draft is not None
    said, key = c.preset.draft.quantization, "draft.quantization"
    q = read_quant_map(d.config, d.hf_quant_config)
    packed = [
        n
        for n, t in d.tensors.items()
        if t.dtype == "U8" or t.dtype.startswith("F8") or n.endswith("_packed")
    ]
    quantized = bool(q.method or packed)
    if quantized and said == "unquant":
        yield fail("draft quantization", f"the draft is {q.method or 'packed'} ({len(packed)} packed tensors)", key,
                   f'write quantization = "{q.method or "modelopt_fp4"}"')  # fmt: skip
        return
    if not quantized and said != "unquant":
        yield fail("draft quantization", f"the draft is not quantized, the preset says {said}", key,
                   'write quantization = "unquant"')  # fmt: skip
        return
    if q.method and said not in (q.method, "modelopt"):
        yield fail(
            "draft quantization",
            f"the engine will detect {q.method}",
            key,
            f'write quantization = "{q.method}"',
        )
        return
    fc = d.tensors.get("fc.weight")
    dense_fc = fc is not None and fc.dtype in ("BF16", "F16", "F32")
    if quantized and not dense_fc and not c.patched("P03"):
        yield fail("draft quantization", "fc is quantized; 0.5.23 builds it dense (wrong shape, or random weights)",
                   "needs_patches", "add P03, or use a draft whose fc is dense")  # fmt: skip
    elif q.method == "modelopt_mixed" and not c.patched("P03"):
        yield fail("draft quantization", "a MIXED_PRECISION draft does not load in 0.5.23 (empty prefixes)",
                   "needs_patches", "add P03, or use a uniform NVFP4 draft")  # fmt: skip
    else:
        detail = f"{said}" + (
            f", {len(packed)} packed tensors, fc dense" if quantized else ", declared explicitly"
        )
        yield ok("draft quantization", detail, key)


def _stretched(c: Case) -> str | None:
    """Why the target counts as stretched beyond its native context, or None."""
    override = c.engine.get("json_model_override_args")
    text = str(override or "").lower()
    if "yarn" in text or "rope" in text:
        return "engine.json_model_override_args changes RoPE"
    native = c.target.text.get("max_position_embeddings")
    asked = c.engine.get("context_length")
    if isinstance(asked, int) and isinstance(native, int) and asked > native:
        return f"engine.context_length {asked} exceeds the native {native}"
    return None


def _rope(c: Case, d: Facts) -> Iterator[Finding]:
    rope = d.text.get("rope_parameters") or d.text.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else "default"
    stretched = _stretched(c)
    if stretched and not c.patched("P04"):
        yield fail("rope", f"{stretched}; 0.5.23 applies the override to the draft too", "needs_patches",
                   "add P04 and serve with an image that has it")  # fmt: skip
    if kind in ("default", None):
        yield ok("rope", "the draft has no RoPE scaling", "draft.repo")
    elif stretched:
        yield fail("rope", f"the draft scales RoPE ({kind}) and {stretched}", "draft.repo",
                   "use a draft without RoPE scaling for a stretched target")  # fmt: skip
    else:
        factor = f" factor {rope['factor']}" if "factor" in rope else ""
        yield warn("rope", f"the draft's own configuration scales RoPE ({kind}{factor})", "draft.repo",
                   "keep the target at its native context")  # fmt: skip


def _logits(c: Case, d: Facts) -> Iterator[Finding]:
    for what, names in (("soft-cap", SOFT_CAPS), ("output multiplier", MULTIPLIERS)):
        mine = {n: v for n in names if (v := d.text.get(n)) not in (None, 1, 1.0)}
        theirs = {n: v for n in names if (v := c.target.text.get(n)) not in (None, 1, 1.0)}
        if set(mine.values()) != set(theirs.values()):
            yield fail("logits", f"{what}: draft {mine or 'none'}, target {theirs or 'none'}", "draft.repo",
                       "use the draft trained for this target: its selector must honour both")  # fmt: skip


def _selector(c: Case, d: Facts) -> Iterator[Finding]:
    if "DFlash2DraftModel" not in d.architectures:
        return
    missing = [
        k
        for k in ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
        if not _get(d, k)
    ]
    names = [
        f"candidate_selector.{n}"
        for n in ("hidden_projection.weight", "predecessor_codebook", "successor_codebook")
    ]
    missing += [n for n in names if d.tensors and n not in d.tensors]
    if missing:
        yield fail("selector", f"missing: {', '.join(missing)}", "draft.repo", "use a whole DFlash2 draft")
        return
    top_k, vocab = _get(d, "selector_top_k"), c.target.text.get("vocab_size")
    if isinstance(vocab, int) and top_k > vocab:
        yield fail(
            "selector",
            f"selector_top_k {top_k} exceeds the vocabulary {vocab}",
            "draft.repo",
            "use another draft",
        )
    else:
        yield ok("selector", f"rank {_get(d, 'selector_rank')}, top {top_k}", "draft.repo")


def _files(c: Case, d: Facts) -> Iterator[Finding]:
    if "mask_embedding.pt" in d.files and c.preset.draft and c.preset.draft.repo:
        yield warn("draft files", "mask_embedding.pt is read from local folders only; from the hub it is ignored",
                   "draft.repo", "expect lower acceptance, or serve the draft from a folder")  # fmt: skip
    if c.engine.get("speculative_draft_window_size"):
        yield warn("draft window", "a draft window killed the scheduler on an earlier image (pangoleen)",
                   "engine.speculative_draft_window_size", "remove the key: the draft brings its own window")  # fmt: skip


def _mtp(c: Case) -> Iterator[Finding]:
    mtp = [n for n in c.target.tensors if n.startswith("mtp.") or ".mtp." in n]
    if c.target.tensors and not mtp:
        yield fail(
            "mtp",
            "the target carries no mtp.* tensors",
            "draft.in_target",
            "use a checkpoint with its MTP layers",
        )
        return
    packed = [n for n in mtp if c.target.tensors[n].dtype == "U8"]
    if packed and c.quant.method == "modelopt_fp4":
        yield fail("mtp", f"{packed[0]} is packed, and a uniform NVFP4 checkpoint cannot load that (sglang #36599)",
                   "target.repo", "use a MIXED_PRECISION export, or one whose MTP layers are BF16")  # fmt: skip
    else:
        yield ok("mtp", f"{len(mtp)} MTP tensors, {'packed' if packed else 'unquantized'}", "draft.in_target")
