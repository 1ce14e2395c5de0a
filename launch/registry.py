"""Finding and loading presets: files, `extends`, nearest names."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch import paths
from launch.errors import ConfigError, UsageError
from launch.preset import Preset

# What a variant never takes over: claims and prose belong to the file that makes them.
_OWN_ONLY = (
    "name",
    "title",
    "summary",
    "status",
    "reported",
    "why",
    "instead",
    "abstract",
    "extends",
    "drop",
)


class Registry:
    """The preset files of one folder. Files are read on demand: one preset costs the files it extends."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or paths.presets_dir()
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder}: no such preset folder; set SPARKSERVE_PRESETS or reinstall")
        self._raw: dict[str, dict[str, Any]] = {}
        self._presets: dict[str, Preset] = {}

    def names(self) -> list[str]:
        """Names of all presets, without the abstract bases (files whose name starts with _)."""
        return sorted(p.stem for p in self.folder.glob("*.toml") if not p.name.startswith("_"))

    def load(self, name: str) -> Preset:
        """The merged, validated preset. Raises UsageError for an unknown name, ConfigError for a bad file."""
        if name not in self._presets:
            if name not in self.names():
                raise UsageError(self._unknown(name))
            self._presets[name] = build(self.merged(name), self.folder / f"{name}.toml")
        return self._presets[name]

    def load_all(self) -> list[Preset]:
        names = self.names()
        if not names:
            raise ConfigError(f"{self.folder}: no preset in this folder; set SPARKSERVE_PRESETS or reinstall")
        return [self.load(name) for name in names]

    def merged(self, name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
        """The file's table over what it extends: `drop` removes inherited keys, then the child's win."""
        if name in seen:
            raise ConfigError(
                f"{self.folder / seen[-1]}.toml: extends goes round: {' -> '.join((*seen, name))}"
            )
        own = self._read(name, seen)
        parent_name = own.get("extends")
        if parent_name is None:
            return {k: v for k, v in own.items() if k not in ("abstract", "drop")}
        inherited = self.merged(str(parent_name), (*seen, name))
        inherited = {k: v for k, v in inherited.items() if k not in _OWN_ONLY}
        dropped = own.get("drop", [])
        if not isinstance(dropped, list) or not all(isinstance(path, str) for path in dropped):
            raise ConfigError(
                f'{self.folder / name}.toml: drop: write a list of keys, as ["engine.page_size"]'
            )
        for path in dropped:
            _drop(inherited, path, f"{self.folder / name}.toml")
        own = {k: v for k, v in own.items() if k not in ("abstract", "drop", "extends")}
        return deep_merge(inherited, own)

    def _read(self, name: str, seen: tuple[str, ...]) -> dict[str, Any]:
        if name in self._raw:
            return self._raw[name]
        path = self.folder / f"{name}.toml"
        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.folder / seen[-1]}.toml: extends {name!r}, which does not exist"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if data.get("name", name) != name:
            raise ConfigError(
                f"{path}: name is {data['name']!r}, but the file is called {name}.toml; make them equal"
            )
        if name.startswith("_") != bool(data.get("abstract")):
            raise ConfigError(
                f"{path}: abstract = true goes with a file name that starts with _, and only with it"
            )
        self._raw[name] = data
        return data

    def _unknown(self, name: str) -> str:
        names = self.names()
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"nearest: {', '.join(close)}" if close else "`sparkserve presets` lists them"
        return f"unknown preset {name!r}; {hint}"


def build(data: Mapping[str, Any], path: Path) -> Preset:
    """Validate a merged table. Raises ConfigError with one line that names file and key."""
    from pydantic import ValidationError

    from launch.engine_keys import check_engine

    try:
        preset = Preset.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "preset"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}{more}") from error
    try:
        check_engine(preset)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return preset


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = deep_merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _drop(data: dict[str, Any], path: str, where: str) -> None:
    *tables, last = path.split("/") if "/" in path else path.split(".")
    node: Any = data
    for part in tables:
        # copy on the way down: the parent's table may be shared with other presets
        child = node.get(part)
        if not isinstance(child, dict):
            raise ConfigError(f"{where}: drop {path!r}: nothing of that name is inherited")
        node[part] = dict(child)
        node = node[part]
    if last not in node:
        raise ConfigError(f"{where}: drop {path!r}: nothing of that name is inherited")
    del node[last]
