"""Rules a checkpoint (and a pair) must meet before 22 GB move. Pure: facts in, findings out.

Each rule yields findings that name the preset key they are about and the mend. Target rules are here, rules
for the draft that goes with it in `check_pair`. Sources: facts 2.1, 2.2 and 4; upstream-gaps A, B1 and p01-p07.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from launch.checkpoint import Facts
from launch.preset import Preset
from launch.quantmap import (
    NEEDS_P05,
    QuantMap,
    head_in_tensors,
    read_quant_map,
    tensor_faults,
    unsupported_labels,
)

KV_NAMES = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}
PERMISSIVE = ("apache-2.0", "mit", "bsd-3-clause", "bsd-2-clause")


class Verdict(StrEnum):
    """PASS, WARN (works, but read it), FAIL (would not start, or would be wrong)."""

    PASS = "PASS"  # noqa: S105
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the table: the rule, what was found, the preset key it is about, and the mend."""

    rule: str
    verdict: Verdict
    detail: str
    key: str
    mend: str = ""

    def as_json(self) -> dict[str, str]:
        """Plain data for --json."""
        return {k: str(v) for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Case:
    """What is checked: the preset, its engine keys for one machine, both checkpoints, whether to bake."""

    preset: Preset
    engine: Mapping[str, Any]
    target: Facts
    draft: Facts | None = None
    bake: bool = False

    @cached_property
    def quant(self) -> QuantMap:
        """The target's quantization map."""
        return read_quant_map(self.target.config, self.target.hf_quant_config)

    def patched(self, patch: str) -> bool:
        """Whether the preset says it needs (so the image has) this patch."""
        return patch in self.preset.needs_patches


def ok(rule: str, detail: str, key: str) -> Finding:
    """A PASS."""
    return Finding(rule, Verdict.PASS, detail, key)


def warn(rule: str, detail: str, key: str, mend: str) -> Finding:
    """A WARN."""
    return Finding(rule, Verdict.WARN, detail, key, mend)


def fail(rule: str, detail: str, key: str, mend: str) -> Finding:
    """A FAIL."""
    return Finding(rule, Verdict.FAIL, detail, key, mend)


def evaluate(case: Case) -> list[Finding]:
    """Every rule, in reading order."""
    from launch.check_pair import pair_rules

    if known_bad := list(_status(case)):
        return known_bad
    findings: list[Finding] = []
    for rule in (
        _origin,
        _architecture,
        _remote_code,
        _quantization,
        _head,
        _kv_cache,
        _tensors,
        _licences,
    ):
        findings += rule(case)
    findings += pair_rules(case)
    return findings


def failed(findings: list[Finding]) -> bool:
    """Whether any rule failed."""
    return any(f.verdict is Verdict.FAIL for f in findings)


def _status(c: Case) -> Iterator[Finding]:
    if c.preset.why:
        better = f"use {c.preset.instead}" if c.preset.instead else "use another preset"
        yield fail("known bad", c.preset.why, "status", better)


def _origin(c: Case) -> Iterator[Finding]:
    for role, facts in (("target", c.target), ("draft", c.draft)):
        if facts is None:
            continue
        for wrong in facts.lock_disagrees:
            yield fail(
                "lock", wrong, f"{role}.lock", "do not use this mirror, or review and run `sparkserve pin`"
            )
        if facts.moved_to:
            yield warn(
                "origin",
                f"{facts.name} has moved to {facts.moved_to}",
                f"{role}.repo",
                f"write {facts.moved_to}",
            )


def _architecture(c: Case) -> Iterator[Finding]:
    key, have, want = (
        "target.expects.architecture",
        c.target.architectures,
        c.preset.target.expects.architecture,
    )
    if want and want not in have:
        yield fail(
            "architecture", f"config.json says {list(have)}", key, f"pin a revision whose class is {want}"
        )
    elif have:
        yield ok("architecture", have[0], key)
    if "Qwen3_5ForCausalLM" in have and c.quant.head != "BF16":
        yield fail(
            "architecture",
            f"the text-only class drops the scales of a {c.quant.head} head without a word",
            "target.repo",
            "use the checkpoint of class Qwen3_5ForConditionalGeneration",
        )
    geometry = c.preset.target.geometry
    if geometry is None:
        return
    said = {"layers": "num_hidden_layers", "hidden_size": "hidden_size", "vocab_size": "vocab_size",
            "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
            "linear_value_heads": "linear_num_value_heads"}  # fmt: skip
    for ours, theirs in said.items():
        mine, found = getattr(geometry, ours), c.target.text.get(theirs)
        if found is not None and mine != found:
            yield fail(
                "geometry", f"{theirs} is {found}", f"target.geometry.{ours}", f"write {found} (now {mine})"
            )


def _remote_code(c: Case) -> Iterator[Finding]:
    for role, facts in (("target", c.target), ("draft", c.draft)):
        if facts is None:
            continue
        code = [f for f in facts.files if f.endswith(".py")]
        if code or facts.config.get("auto_map"):
            yield warn(
                "remote code",
                f"{facts.name} ships Python ({', '.join(code[:3]) or 'auto_map'}); it is never run",
                f"{role}.repo",
                "leave engine.trust_remote_code unset",
            )
    if c.engine.get("trust_remote_code"):
        yield warn(
            "remote code",
            "trust_remote_code runs Python from the hub",
            "engine.trust_remote_code",
            "remove it",
        )


def _quantization(c: Case) -> Iterator[Finding]:
    q, want = c.quant, c.preset.target.expects.quantization
    counts = ", ".join(f"{n} {label}" for label, n in sorted(q.counts().items()))
    said = (q.method or "unquantized") + (f" ({counts})" if counts else "")
    if want and want != (q.method or "unquantized"):
        yield fail("quantization", f"the engine will detect {said}", "target.expects.quantization",
                   f"pin a revision that is {want}, or write {q.method or 'unquantized'}")  # fmt: skip
    else:
        yield ok("quantization", f"{said}, from {q.source}", "target.expects.quantization")
    if q.method == "compressed-tensors":
        yield warn(
            "quantization", "compressed-tensors NVFP4 was reported bad on SGLang (sglang #34895)", "target.repo",
            "prefer a ModelOpt export",
        )  # fmt: skip
    for label, modules in unsupported_labels(q).items():
        detail = f"{len(modules)} modules are {label or 'unlabelled'} (first: {modules[0]}); 0.5.23 loads them unquantized"
        if label in NEEDS_P05 and c.patched("P05"):
            yield warn(
                "quantization labels", detail, "needs_patches", "serve only with an image that has P05"
            )
        else:
            yield fail("quantization labels", detail, "needs_patches", "add P05, or use another checkpoint")
    documents = [f for f in c.target.files if f.endswith("hf_quant_config.json")]
    if len(documents) > 1:
        yield fail("quantization", f"{len(documents)} files end in hf_quant_config.json: {documents}", "target.repo",
                   "the engine wants exactly one; use another revision")  # fmt: skip
    if (said_q := c.engine.get("quantization")) and q.method:
        yield fail(
            "quantization flag",
            f"engine.quantization = {said_q!r} is inherited by the draft and overridden by the checkpoint",
            "engine.quantization",
            "remove the key: the engine detects it",
        )


def _head(c: Case) -> Iterator[Finding]:
    q, want, key = c.quant, c.preset.target.expects.lm_head, "target.expects.lm_head"
    actual = head_in_tensors(c.target.tensors) if c.target.tensors else None
    if want and q.head != want:
        yield fail("head class", f"lm_head is {q.head}", key,
                   f"write {q.head}, or pin a revision whose head is {want} (RadixArk swapped it once)")  # fmt: skip
    elif actual and q.head in ("NVFP4", "W4A16_NVFP4", "FP8", "BF16") and actual != q.head:
        yield fail(
            "head class",
            f"the map says {q.head}, the tensors are {actual}",
            "target.repo",
            "use another revision",
        )
    else:
        yield ok("head class", q.head + (" (tensors agree)" if actual == q.head else ""), key)
    odd = [n for n in q.layers if n.endswith(".lm_head")]
    if odd:
        yield fail("head class", f"the map calls the head {odd[0]}; 0.5.23 looks for lm_head only", "target.repo",
                   "use an export that calls it lm_head")  # fmt: skip


def _kv_cache(c: Case) -> Iterator[Finding]:
    q, want, key = c.quant, c.preset.target.expects.kv_cache, "target.expects.kv_cache"
    declared = KV_NAMES.get(q.kv or "", (q.kv or "none").lower())
    if want and want != declared:
        yield fail(
            "kv cache",
            f"the checkpoint declares {declared}",
            key,
            f"write {declared}, or pin another revision",
        )
    chosen = str(c.engine.get("kv_cache_dtype", "auto"))
    if chosen == "auto" and q.method and declared == "none":
        yield fail(
            "kv cache",
            "the checkpoint declares no KV format, so the pool falls to BF16 and holds half the tokens",
            "engine.kv_cache_dtype",
            'write kv_cache_dtype = "fp8_e4m3" (or "bf16", if that is meant)',
        )
    elif chosen == "auto" and q.kv_is_string and q.method == "modelopt_mixed":
        yield fail("kv cache", f"kv_cache_scheme is the string {q.kv!r}, which the mixed loader does not read",
                   "engine.kv_cache_dtype", f'write kv_cache_dtype = "{declared}"')  # fmt: skip
    elif chosen == "nvfp4":
        yield warn("kv cache", "NVFP4 KV is reported to loop on one token on SM12x (sglang #36537)",
                   "engine.kv_cache_dtype", 'write kv_cache_dtype = "fp8_e4m3"')  # fmt: skip
    elif chosen in ("bf16", "bfloat16") and declared != "none":
        yield ok("kv cache", f"{chosen} by the preset; the checkpoint's {declared} would hold twice the tokens",
                 "engine.kv_cache_dtype")  # fmt: skip
    elif chosen != "auto" and declared not in ("none", chosen):
        yield warn("kv cache", f"the checkpoint declares {declared}, the preset asks for {chosen}",
                   "engine.kv_cache_dtype", "remove the key to follow the checkpoint")  # fmt: skip
    else:
        in_use = declared if chosen == "auto" and declared != "none" else chosen
        calibrated = any(n.endswith(".k_scale") for n in c.target.tensors)
        note = (
            ""
            if not in_use.startswith("fp8")
            else ", calibrated"
            if calibrated
            else ", no scales: 1.0 is used"
        )
        yield ok("kv cache", f"{in_use}{note}", "engine.kv_cache_dtype")


def _tensors(c: Case) -> Iterator[Finding]:
    if not c.target.tensors:
        yield fail(
            "tensors", f"no safetensors header in {c.target.where}", "target.repo", "pin a whole revision"
        )
        return
    faults = list(tensor_faults(c.quant, c.target.tensors))
    for fatal, make in ((True, fail), (False, warn)):
        some = [f for f in faults if f.fatal is fatal]
        if some:
            more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
            yield make("tensors", f"{some[0].module}: {some[0].text}{more}", "target.repo",
                       "use a revision whose tensors match its map")  # fmt: skip
    if not faults:
        groups = sorted(set(c.quant.groups.values()))
        size = f", group size {groups[0]}" if len(groups) == 1 else ""
        yield ok("tensors", f"{len(c.target.tensors)} tensors agree with the map{size}", "target.repo")
    if len(fp4 := {c.quant.groups.get(m, 16) for m, a in c.quant.layers.items() if "NVFP4" in a}) > 1:
        yield fail("group size", f"NVFP4 modules use {sorted(fp4)}; the engine applies one to all", "target.repo",
                   "use an export with one group size")  # fmt: skip


def _licences(c: Case) -> Iterator[Finding]:
    for role, facts, declared in (
        ("target", c.target, c.preset.target.license),
        ("draft", c.draft, c.preset.draft.license if c.preset.draft else None),
    ):
        if facts is None:
            continue
        key = f"{role}.license"
        if declared and facts.license and declared.lower() != facts.license.lower():
            yield warn(
                "licence",
                f"the hub says {facts.license}, the preset {declared}",
                key,
                f"write {facts.license}",
            )
        name = (facts.license or declared or "").lower()
        spec = c.preset.target if role == "target" else c.preset.draft
        if not name and spec is not None and spec.fixture is not None:
            yield ok("licence", f"{role} is a fixture, built here", key)
        elif not name:
            yield warn(
                "licence", f"{facts.name}: licence unknown", key, "read the model card and write it down"
            )
        elif "-nc" in name or "-nd" in name:
            detail = f"{facts.name} is {name}: mount it, never bake it into an image"
            if "-nc" in name:
                detail += "; no commercial use"
            if c.bake:
                yield fail(
                    "licence", detail, key, "leave it out of the image and mount the cache at run time"
                )
            else:
                yield warn("licence", detail, key, "keep it in a mounted cache")
        elif name in PERMISSIVE:
            yield ok("licence", f"{role} {name}: may be mounted and baked", key)
        else:
            detail = f"{role} is {name}"
            mend = "read its terms before baking it into an image you pass on"
            yield (fail if c.bake else warn)("licence", detail, key, mend)
