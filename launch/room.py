"""Is there room: disk for the download, memory for the plan. Two findings for `check`."""

from __future__ import annotations

import shutil
from pathlib import Path

from launch.check import Finding, fail, ok, warn
from launch.checkpoint import Facts
from launch.errors import ConfigError
from launch.hub import Hub, Repo
from launch.plan import plan
from launch.planfacts import plan_facts
from launch.pull import MIN_FREE
from launch.resolve import Resolved


def disk_finding(hub: Hub, wanted: list[tuple[Repo, Facts]]) -> Finding:
    """Room for what is not in the cache yet, with the margin `pull` keeps."""
    need = sum(
        size or 0
        for repo, facts in wanted
        for path, size in facts.files.items()
        if not (hub.snapshot(repo) / path).is_file()
    )
    if need == 0:
        return ok("disk", "everything is there", "HF_HUB_CACHE")
    free = shutil.disk_usage(_existing(hub.cache)).free
    detail = f"{need / 1e9:.2f} GB to download, {free / 1e9:.2f} GB free in {hub.cache}"
    if free < need + MIN_FREE:
        return fail("disk", detail, "HF_HUB_CACHE", "free space, or point HF_HUB_CACHE elsewhere")
    return ok("disk", detail, "HF_HUB_CACHE")


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_finding(resolved: Resolved) -> Finding:
    """Whether the memory plan fits the machine class."""
    try:
        made = plan(resolved, plan_facts(resolved))
    except ConfigError as e:
        return warn(
            "memory", str(e), "target.geometry", "give the plan what it needs, or watch the first start"
        )
    key = made.knobs[0].key if made.knobs else "engine.mem_fraction_static"
    if not made.fits:
        return fail(
            "memory",
            "; ".join(made.problems),
            key,
            f"write {made.mend}" if made.mend else "use another preset",
        )
    detail = (
        f"fraction {made.fraction:g}: pool of {made.pool_tokens:,} tokens, {made.concurrency} requests at once"
        + "".join(f"; {w}" for w in made.warnings)
    )
    if made.warnings:
        return warn("memory", detail, key, f"sparkserve plan {resolved.preset.name} prints every term")
    return ok("memory", detail, key)
