"""resolve(preset, machine) -> Resolved: the merged view of one preset on one machine class. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from launch.errors import UsageError
from launch.machine import CLASSES, MachineClass
from launch.preset import EngineValue, Preset


@dataclass(frozen=True, slots=True)
class Resolved:
    """A preset on a machine class. `engine` holds every engine key with its last value, in a stable order."""

    preset: Preset
    machine: MachineClass
    engine: Mapping[str, EngineValue]
    env: Mapping[str, str]

    @property
    def slug(self) -> str:
        return f"{self.preset.name}@{self.machine.name}"


def resolve(preset: Preset, machine: str, overrides: Mapping[str, EngineValue] | None = None) -> Resolved:
    """The preset, then class defaults, the preset's table for the class, and `overrides`; the last one wins.

    `overrides` are what an operator set by hand; they must have passed `engine_keys.check_keys`.

    Raises UsageError when the preset has no [machine.X] table for the class: an untested combination is asked
    for by writing that table, not by luck.
    """
    if machine not in CLASSES:
        close = difflib.get_close_matches(machine, list(CLASSES), n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        raise UsageError(f"unknown machine class {machine!r}{hint}; known: {', '.join(CLASSES)}")
    override = preset.machine.get(machine)  # type: ignore[call-overload]
    if override is None:
        raise UsageError(
            f"preset {preset.name} does not support machine class {machine}; "
            f"it supports {', '.join(preset.machine)}"
        )
    cls = CLASSES[machine]
    engine = {**preset.engine, **cls.engine, **override.engine, **(overrides or {})}
    env = {**preset.env, **cls.env, **override.env}
    return Resolved(preset, cls, dict(sorted(engine.items())), dict(sorted(env.items())))
