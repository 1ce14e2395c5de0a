"""Every preset in the repository, checked against its checkpoints as facts.md describes them: no FAIL, no lock missing."""

from __future__ import annotations

import copy

import pytest

from launch.check import Case, Verdict, evaluate
from launch.checkpoint import Facts
from launch.locks import LOCK_DIR, read_lock
from launch.pinned import best_lock, checkpoints, pinned_repo
from launch.preset import Preset, Status
from launch.quantmap import Tensor
from launch.registry import Registry
from launch.resolve import resolve
from tests.hub.model27b import DFLASH2, draft, target

ALL = Registry().load_all()
SERVED = [p for p in ALL if p.status not in (Status.FIXTURE, Status.KNOWN_BAD)]
# Presets of the 27B geometry: the 35B's shapes are in no source.
KNOWN = [p for p in SERVED if p.target.geometry and p.target.geometry.hidden_size == 5120]


def target_of(p: Preset) -> Facts:
    """As the tables of facts.md 2.1 describe the repository."""
    repo = p.target.repo or ""
    label = "W4A16_NVFP4" if "3.6" in repo else "NVFP4"
    facts = target(
        mlp=label,
        head=None if "BF16-LMHead" in repo else label,
        kv=repo != "nvidia/Qwen3.8-27B-NVFP4",
        license=p.target.license,
    )
    return facts


def draft_of(p: Preset) -> Facts | None:
    """As facts.md 2.2 describes it."""
    if p.draft is None or p.draft.repo is None:
        return None
    config, change = copy.deepcopy(DFLASH2), {}
    if "DSpark" in p.draft.repo:
        config |= {"architectures": ["DSparkDraftModel"], "block_size": 7,
                   "rope_scaling": {"rope_type": "yarn", "factor": 32.0}}  # fmt: skip
        config["dflash_config"] = {"mask_token_id": 248_077, "target_layer_ids": [4, 16, 28, 40, 52]}
        del config["rope_parameters"]
    elif "DFlash2" not in p.draft.repo:
        config |= {"architectures": ["DFlashDraftModel"], "block_size": 16}
        config["dflash_config"] = {"mask_token_id": 248_070, "target_layer_ids": [5, 19, 33, 47, 61]}
    if "NVFP4" in p.draft.repo:
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["fc"]}
        change = {"layers.0.mlp.gate_proj.weight": Tensor("U8", (17_408, 2560))}
    facts = draft(config, license=p.draft.license)
    return Facts(**{**vars(facts), "tensors": {**facts.tensors, **change}})


@pytest.mark.parametrize("p", KNOWN, ids=lambda p: p.name)
def test_no_preset_fails_its_own_check(p):
    for machine in p.machine:
        findings = evaluate(Case(p, resolve(p, machine).engine, target_of(p), draft_of(p)))
        bad = [
            f"{machine}: {f.rule}: {f.detail} ({f.key}: {f.mend})"
            for f in findings
            if f.verdict is Verdict.FAIL
        ]
        assert bad == []


def test_the_rules_see_a_swapped_draft_in_every_pair():
    """The same presets with the draft of another model: each of them fails."""
    for p in KNOWN:
        d = draft_of(p)
        if d is None:
            continue
        d.config["hidden_size"] = 6656  # type: ignore[index]
        verdicts = {
            f.rule: f.verdict for f in evaluate(Case(p, {}, target_of(p), d)) if f.rule == "hidden size"
        }
        assert verdicts == {"hidden size": Verdict.FAIL}, p.name


@pytest.mark.parametrize("p", SERVED, ids=lambda p: p.name)
def test_locks_belong_to_what_the_preset_pins(p):
    for role, checkpoint in checkpoints(p):
        repo = pinned_repo(role, checkpoint)
        lock = best_lock(repo, checkpoint)
        assert lock.revision == repo.revision
        if checkpoint.license and lock.license:
            assert lock.license == checkpoint.license


def test_every_lock_is_used_by_a_preset_or_is_the_mirror_of_one():
    used = {c.repo for p in SERVED for _, c in checkpoints(p)}
    for path in LOCK_DIR.glob("*@*.json"):
        repo = read_lock(path).repo
        assert repo in used or repo == "incoai/Qwen3.8-27B-DFlash2", path.name
