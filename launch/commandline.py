"""From what an operator typed to the engine's command: the edge that looks up machine, presets and places."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch import machine as machines
from launch import paths
from launch.engine_keys import parse_settings
from launch.errors import ConfigError, UsageError
from launch.preset import COMPUTED, EngineValue, Preset, Status
from launch.registry import Registry
from launch.render import Command, Places, argv
from launch.resolve import Resolved, resolve

DEFAULT_WITHOUT_GPU = "tiny-w4a4-dflash2"
RATIO = "mamba_full_memory_ratio"


@dataclass(frozen=True, slots=True)
class Launch:
    """What will be started, and what the operator should know about the choice."""

    resolved: Resolved
    command: Command
    notes: tuple[str, ...]


def places() -> Places:
    """The engine's interpreter is SPARKSERVE_ENGINE_PYTHON, else the one running this."""
    python = os.environ.get("SPARKSERVE_ENGINE_PYTHON") or sys.executable
    return Places(python, paths.fixtures_dir(), paths.cpu_engine_dir())


def choose(
    preset: str | None,
    machine: str | None,
    registry: Registry | None = None,
    settings: Sequence[str] = (),
) -> tuple[Resolved, tuple[str, ...]]:
    """The preset on the machine class, with notes about what was chosen for the operator.

    Raises UsageError (unknown names, no default on a GPU machine), ConfigError (a known-bad preset).
    """
    registry = registry or Registry()
    notes: list[str] = []
    loaded = registry.load(preset) if preset is not None else None
    if machine is None:
        found = machines.detect()
        machine = found.name
        what = f"{found.gpus[0].name} ({found.source})" if found.gpus else found.source
        notes.append(f"machine class {machine}: {what}")
    else:
        machine = machines.by_name(machine).name
    if loaded is None:
        if machine != "cpu":
            raise UsageError(
                f"name a preset; for {machine}: {', '.join(_for_machine(registry, machine)) or 'none'}"
            )
        loaded = registry.load(DEFAULT_WITHOUT_GPU)
        notes.append(f"no preset named and no GPU found: serving the fixture {DEFAULT_WITHOUT_GPU}")
    if loaded.status is Status.KNOWN_BAD:
        instead = f"; use {loaded.instead}" if loaded.instead else ""
        raise ConfigError(f"preset {loaded.name} is known to be bad: {loaded.why}{instead}")
    if machine == "cpu" and "cpu" not in loaded.machine:
        raise UsageError(
            f"preset {loaded.name} needs a GPU ({', '.join(loaded.machine)}) and none was found here; "
            f"without one, serve {DEFAULT_WITHOUT_GPU}, "
            f"or look at the command with --machine {loaded.default_machine} --print"
        )
    overrides = parse_settings(settings)
    if overrides:
        notes.append(f"changed by hand, so no report of this preset applies: {', '.join(overrides)}")
    return computed(resolve(loaded, machine, overrides)), tuple(notes)


def computed(resolved: Resolved) -> Resolved:
    """With mamba_full_memory_ratio = "computed" filled in from shapes, dtypes and request length.

    Raises ConfigError when the preset leaves open what the rule needs.
    """
    engine = resolved.engine
    if engine.get(RATIO) != COMPUTED:
        return resolved
    from launch.plan import full_memory_ratio

    preset = resolved.preset
    declared = preset.target.expects.kv_cache
    kv_dtype = engine.get("kv_cache_dtype", "auto")
    needs = {
        "target.geometry": preset.target.geometry,
        "mamba_ssm_dtype": engine.get("mamba_ssm_dtype"),
        "mamba_radix_cache_strategy": engine.get("mamba_radix_cache_strategy"),
        "kv_cache_dtype": declared if kv_dtype == "auto" else kv_dtype,
    }
    missing = [name for name, value in needs.items() if value in (None, "auto", "none")]
    if missing:
        raise ConfigError(f"{resolved.slug}: {RATIO} = {COMPUTED!r} also needs {', '.join(missing)}")
    assert preset.target.geometry is not None
    ratio = full_memory_ratio(
        preset.target.geometry,
        ssm_dtype=str(needs["mamba_ssm_dtype"]),
        kv_dtype=str(needs["kv_cache_dtype"]),
        strategy="radix_off"
        if engine.get("disable_radix_cache")
        else str(needs["mamba_radix_cache_strategy"]),
        draft_tokens=preset.draft.tokens if preset.draft else 0,
        request_tokens=preset.memory.request_tokens,
    )
    return replace(resolved, engine={**engine, RATIO: ratio})


def command_for(
    preset: str | None,
    machine: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 30000,
    served_model_name: str | None = None,
    config_file: Path | None = None,
    settings: Sequence[str] = (),
    profile: bool = True,
) -> Launch:
    """`choose`, with what `sparkserve tune` found here, then the engine's command on this machine's places.

    `profile = False` leaves the machine profile out.
    """
    resolved, notes = choose(preset, machine, settings=settings)
    if profile:
        resolved, notes = tuned(resolved, notes, parse_settings(settings))
    command = argv(
        resolved,
        places(),
        host=host,
        port=port,
        served_model_name=served_model_name,
        config_file=config_file,
    )
    return Launch(resolved, command, notes)


def tuned(
    resolved: Resolved, notes: tuple[str, ...], by_hand: Mapping[str, EngineValue]
) -> tuple[Resolved, tuple[str, ...]]:
    """With the machine profile's choices; what was set by hand wins. Nothing is asked where nobody has tuned."""
    from launch.tune import profile

    if not profile.folder().is_dir() or resolved.machine.name == "cpu":
        return resolved, notes
    key = profile.current_key(places().python)
    if key is None or key.capability != resolved.machine.compute_capability:
        return resolved, notes  # another class was asked for by --machine
    preset = resolved.preset
    used = profile.use(preset.name, preset.digest, key)
    engine = {k: v for k, v in used.engine.items() if k not in by_hand}
    changed = replace(
        resolved,
        engine=dict(sorted({**resolved.engine, **engine}.items())),
        env=dict(sorted({**resolved.env, **used.env}.items())),
    )
    return changed, (*notes, used.note) if used.note else notes


def check_places(resolved: Resolved, where: Places) -> None:
    """Refuse what the command points at and is not there, or a fixture whose bytes have changed.

    Raises ConfigError with the command that makes it, CheckFailed with the file.
    """
    from launch.fixturefiles import ensure_fixture
    from launch.pinned import checkpoints

    for role, checkpoint in checkpoints(resolved.preset):
        if checkpoint.fixture is None:
            continue
        folder = where.fixtures / checkpoint.fixture
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{folder}: the fixture checkpoint is not built; run `sparkserve fixtures build` "
                "(or set SPARKSERVE_FIXTURES)"
            )
        ensure_fixture(where.fixtures, role, checkpoint)
    if resolved.machine.name == "cpu" and not where.cpu_engine.is_dir():
        raise ConfigError(
            f"{where.cpu_engine}: the CPU engine is not there; set SPARKSERVE_CPU_ENGINE "
            "(the GPU image does not carry it)"
        )


def _for_machine(registry: Registry, machine: str) -> list[str]:
    def serves(preset: Preset) -> bool:
        return machine in preset.machine and preset.status is not Status.KNOWN_BAD

    return [p.name for p in registry.load_all() if serves(p)]
