"""The machine profile: what `sparkserve tune` found, kept in the cache folder, and whether it still applies.

It applies to one GPU model, driver, engine and image: with any of these changed it is stale, is said to be, and is not used.
The file name is a hash of the key, so that several machines may share a cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launch import machine, paths
from launch.errors import ConfigError
from launch.files import write_text
from launch.preset import EngineValue
from launch.provenance import manifest_path

PACKAGES = ("sglang", "flashinfer-python", "torch")


class Key(BaseModel):
    """What the numbers belong to."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    gpu: str
    capability: str
    driver: str
    packages: dict[str, str]
    image: str = Field("", description="sha256 of the image's manifest; empty outside the image")

    def name(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def differs(self, other: Key) -> list[str]:
        """What is not the same, in words: `driver 580.1 -> 590.2`."""
        out = []
        for what in ("gpu", "capability", "driver"):
            if (a := getattr(self, what)) != (b := getattr(other, what)):
                out.append(f"{what} {a} -> {b}")
        for package in sorted(self.packages.keys() | other.packages.keys()):
            old, new = self.packages.get(package, "none"), other.packages.get(package, "none")
            if old != new:
                out.append(f"{package} {old} -> {new}")
        if self.image != other.image:
            out.append("another image")
        return out


class Chosen(BaseModel):
    """One role's verdict."""

    model_config = ConfigDict(extra="forbid")
    role: str
    option: str
    autotune: bool
    today: str
    speedup: float
    why: str


class Tuned(BaseModel):
    """One preset's part. `engine` and `env` are what `serve` adds; empty when today's choices stay."""

    model_config = ConfigDict(extra="forbid")
    digest: str
    finished: bool
    choices: list[Chosen] = Field(default_factory=list)
    engine: dict[str, EngineValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class Profile(BaseModel):
    """The file. `records` are raw: measurement key -> {"us": [...]} or {"error": "..."}."""

    model_config = ConfigDict(extra="forbid")
    schema_: Literal[1] = Field(1, alias="schema")
    key: Key
    copy_bytes: int
    bandwidth: float | None = Field(None, description="measured copy bandwidth, bytes/s read and written")
    records: dict[str, dict[str, Any]] = Field(default_factory=dict)
    presets: dict[str, Tuned] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Used:
    """What `serve` makes of the profiles on this machine. `note` is what to tell; empty when there is nothing."""

    engine: Mapping[str, EngineValue]
    env: Mapping[str, str]
    note: str


def folder() -> Path:
    return paths.cache_dir() / "tune"


def path_of(key: Key) -> Path:
    return folder() / f"{key.name()}.json"


def current_key(engine_python: str) -> Key | None:
    """The key of this machine; None without a GPU whose driver and capability are known."""
    gpus = machine.detect_gpus()
    if not gpus or gpus[0].driver is None or gpus[0].compute_capability is None:
        return None
    manifest = manifest_path()
    image = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16] if manifest.is_file() else ""
    return Key(
        gpu=gpus[0].name,
        capability=gpus[0].compute_capability,
        driver=gpus[0].driver,
        packages=packages(engine_python),
        image=image,
    )


def packages(engine_python: str) -> dict[str, str]:
    """Versions of what runs the kernels, as the engine's interpreter has them. The patched wheel's names its series."""
    if Path(engine_python) != Path(sys.executable):
        code = (
            "import importlib.metadata as m, json\nout = {}\n"
            f"for p in {PACKAGES!r}:\n    try: out[p] = m.version(p)\n    except m.PackageNotFoundError: pass\n"
            "print(json.dumps(out))"
        )
        try:
            done = subprocess.run(
                [engine_python, "-c", code], capture_output=True, text=True, timeout=60, check=True
            )
            return dict(json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise ConfigError(
                f"{engine_python}: does not run ({error}); set SPARKSERVE_ENGINE_PYTHON"
            ) from error
    out = {}
    for package in PACKAGES:
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def load(path: Path) -> Profile | None:
    """The profile in a file; None when there is none. ConfigError for one that is damaged."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path}: not a machine profile ({where}: {first['msg']}); delete it and tune again"
        ) from error


def save(profile: Profile) -> Path:
    path = path_of(profile.key)
    write_text(path, profile.model_dump_json(by_alias=True, indent=1) + "\n")
    return path


def use(preset: str, digest: str, key: Key | None, where: Path | None = None) -> Used:
    """What a server of `preset` takes from the profiles. Never raises: a bad profile is told and not used."""
    where = where or folder()
    if key is None or not where.is_dir():
        return Used({}, {}, "")
    path = where / f"{key.name()}.json"
    try:
        found = load(path)
    except ConfigError as error:
        return Used({}, {}, f"machine profile not used: {error}")
    if found is None:
        return Used({}, {}, _stale(preset, key, where))
    if differs := found.key.differs(key):
        return Used({}, {}, f"machine profile {path.name} not used: {', '.join(differs)}")
    tuned = found.presets.get(preset)
    if tuned is None:
        return Used({}, {}, "")
    if tuned.digest != digest:
        return Used(
            {},
            {},
            f"machine profile {path.name} not used: the preset has changed; run `sparkserve tune {preset}`",
        )
    words = [f"{k} = {v}" for k, v in (*tuned.engine.items(), *tuned.env.items())]
    said = ", ".join(words) if words else "today's choices stay"
    part = "" if tuned.finished else " (not finished)"
    return Used(dict(tuned.engine), dict(tuned.env), f"machine profile {path.name}{part}: {said}")


def _stale(preset: str, key: Key, where: Path) -> str:
    """A note about the profile of this preset that applied to another driver, engine or image."""
    for path in sorted(where.glob("*.json")):
        try:
            found = load(path)
        except ConfigError:
            continue
        if found is not None and preset in found.presets and found.key.gpu == key.gpu:
            changed = ", ".join(found.key.differs(key))
            return f"machine profile {path.name} is stale and not used: {changed}; run `sparkserve tune {preset}`"
    return ""
