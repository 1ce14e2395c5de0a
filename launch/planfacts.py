"""Look up what the memory plan needs: launch/models/*.toml, locks, and this machine. I/O edge."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import ConfigError
from launch.pinned import best_lock, pinned_repo
from launch.plan import GIB, PlanFacts
from launch.preset import Checkpoint
from launch.resolve import Resolved

MODELS = Path(__file__).parent / "models"


@cache
def table(name: str) -> dict[str, Any]:
    """One of the TOML files in launch/models."""
    return tomllib.loads((MODELS / f"{name}.toml").read_text("utf-8"))


def plan_facts(r: Resolved, *, free_gib: float | None = None, measured_from: str = "--free-gib") -> PlanFacts:
    """Facts for `plan`. ConfigError names the checkpoint nobody has sized."""
    machine = table("machines")[r.machine.name]
    target = _sized("target", r.preset.target)
    draft: dict[str, Any] = {}
    if r.preset.draft is not None and not r.preset.draft.in_target:
        draft = _sized("draft", r.preset.draft)
    named = [("target weights", target), ("draft", draft)]
    assumed = [f"{what}: {entry['source']}" for what, entry in named if entry.get("assumed")]
    if free_gib is None and machine.get("assumed"):
        assumed.append(f"machine: {machine['source']}")
    return PlanFacts(
        weight_bytes=target["weight_bytes"],
        weight_source=target["source"],
        draft_bytes=draft.get("weight_bytes", 0),
        draft_layers=draft.get("layers", 0),
        draft_kv_heads=draft.get("kv_heads", 0),
        draft_head_dim=draft.get("head_dim", 0),
        draft_source=draft.get("source", ""),
        total_bytes=int(machine["total"] * GIB),
        free_bytes=int((free_gib if free_gib is not None else machine["free"]) * GIB),
        machine_source=machine["source"] if free_gib is None else measured_from,
        unified=r.machine.unified,
        assumed=tuple(assumed),
        kv_declared=_declared_kv(r),
        runtime_bytes=int(machine["runtime_gb"] * 1e9),
    )


def _declared_kv(r: Resolved) -> str | None:
    declared = r.preset.target.expects.kv_cache
    return declared if declared not in (None, "none") else None


def _sized(role: str, checkpoint: Checkpoint) -> dict[str, Any]:
    for entry in table("checkpoints")[role]:
        ours = (entry.get("repo", "").lower(), entry.get("fixture"))
        if ours == ((checkpoint.repo or "").lower(), checkpoint.fixture):
            return dict(entry)
    if checkpoint.fixture is not None:  # whatever it is called, it is tiny
        return dict(table("checkpoints")["any_fixture"])
    if checkpoint.repo is not None and role == "target":
        lock = best_lock(pinned_repo(role, checkpoint), checkpoint)
        size = sum(f.size or 0 for f in lock.files if f.path.endswith(".safetensors"))
        if size and not lock.partial:
            return {"weight_bytes": size, "source": "complete lock"}
    raise ConfigError(
        f"{role} {checkpoint.source}: its size is unknown to the memory plan; "
        f"pull it once, or add a [[{role}]] entry with weight_bytes and source to launch/models/checkpoints.toml"
    )


def measured_free_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """MemAvailable in GiB: what the engine itself takes as free on a unified machine."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 / GIB if found else None


def measured_here(r: Resolved) -> float | None:
    """MemAvailable in GiB when this machine is unified and of the plan's class; None otherwise."""
    from launch.machine import detect

    if not r.machine.unified:
        return None
    try:
        here = detect().name
    except ConfigError:
        return None
    return measured_free_gib() if here == r.machine.name else None
