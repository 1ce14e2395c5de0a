"""The flags of the pinned engine (`engine_flags.json`), and the check of a preset's engine keys against them.

A preset writes a flag as its long name with underscores and no dashes in front: `--mem-fraction-static` is
`mem_fraction_static`. Values are TOML values: switches take true/false, lists take arrays, JSON
flags take tables.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launch.errors import ConfigError
from launch.removed_flags import REMOVED

FLAGS_FILE = Path(__file__).with_name("engine_flags.json")

# Declared as text, parsed as JSON by the engine later on: a preset writes them as tables.
JSON_TEXT = frozenset(
    {"--json-model-override-args", "--model-loader-extra-config", "--preferred-sampling-params"}
)

Kind = Literal["switch", "toggle", "value", "list"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `switch` has no value, `toggle` also has a --no- form, `list` takes several values."""

    flag: str
    aliases: tuple[str, ...]
    dest: str
    kind: Kind
    type: Literal["bool", "int", "float", "str", "json"]
    nargs: str | None
    choices: tuple[str | int, ...] | None
    default: Any
    help: str
    deprecated: str | None

    @property
    def key(self) -> str:
        """How a preset spells it."""
        return self.flag.removeprefix("--").replace("-", "_")


class FlagError(ConfigError):
    """A key or value that the engine's parser would refuse. `nearest` are valid keys that look alike."""

    def __init__(self, message: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest


class FlagTable:
    """All flags of one engine version, found by key or by any spelling on a command line."""

    def __init__(self, version: str, flags: Iterable[Flag]) -> None:
        self.version = version
        self.flags = tuple(flags)
        self.by_name: dict[str, Flag] = {}
        for flag in self.flags:
            for name in (flag.flag, *flag.aliases):
                self.by_name[name] = flag
            if flag.kind == "toggle":
                self.by_name["--no-" + flag.flag.removeprefix("--")] = flag
        self.by_key = {flag.key: flag for flag in self.flags}

    def nearest(self, name: str, count: int = 3) -> tuple[str, ...]:
        """Valid flags (with dashes) whose names look like `name`, best first."""
        wanted = "--" + name.lstrip("-").replace("_", "-")
        close = difflib.get_close_matches(wanted, self.by_name, n=count, cutoff=0.6)
        return tuple(dict.fromkeys(self.by_name[c].flag for c in close))

    def check(self, key: str, value: object, where: str = "engine") -> None:
        """Raise FlagError when the engine would not take `key = value`; `where` names the preset's table."""
        flag = self.by_key.get(key)
        if flag is None:
            raise self._unknown(key, where)
        if flag.deprecated:
            raise FlagError(
                f"{label(where, key)}: {flag.flag} is deprecated in sglang {self.version}; use {flag.deprecated}"
            )
        problem = _value_problem(flag, value)
        if problem:
            raise FlagError(f"{label(where, key)}: {problem}")

    def check_all(self, engine: Mapping[str, object], where: str = "engine") -> None:
        for key, value in engine.items():
            self.check(key, value, where)

    def _unknown(self, key: str, where: str) -> FlagError:
        name = "--" + key.replace("_", "-")
        if name in REMOVED:
            removed = REMOVED[name]
            return FlagError(
                f"{label(where, key)}: {name} was removed before sglang {self.version}; {removed.advice}"
            )
        alias = self.by_name.get(name)
        if alias is not None:
            return FlagError(
                f"{label(where, key)}: write {alias.key} (the flag is {alias.flag})", (alias.key,)
            )
        nearest = tuple(self.by_name[n].key for n in self.nearest(key))
        hint = (
            f"; nearest: {', '.join(nearest)}"
            if nearest
            else "; see launch/engine_flags.json for what it has"
        )
        return FlagError(f"{label(where, key)}: sglang {self.version} has no flag {name}{hint}", nearest)


def label(where: str, key: str) -> str:
    """How an error names a key: `machine.gb10-128.page_size` in a preset, `--set page_size` on the command line."""
    return f"{where} {key}" if where.startswith("-") else f"{where}.{key}"


def _value_problem(flag: Flag, value: object) -> str | None:
    if flag.kind in ("switch", "toggle"):
        return None if isinstance(value, bool) else f"{flag.flag} takes true or false, not {value!r}"
    if flag.kind == "list":
        if not isinstance(value, list) or not value:
            return f"{flag.flag} takes a non-empty array, not {value!r}"
        for item in value:
            problem = scalar_problem(flag, item)
            if problem:
                return problem
        return None
    return scalar_problem(flag, value)


def scalar_problem(flag: Flag, value: object) -> str | None:
    # bool is an int in Python, and no valued flag of the engine takes one
    wrong = isinstance(value, bool)
    if flag.type == "int":
        wrong = wrong or not isinstance(value, int)
    elif flag.type == "float":
        wrong = wrong or not isinstance(value, (int, float))
    elif flag.flag in JSON_TEXT:
        wrong = wrong or not isinstance(value, dict)
    elif flag.type == "str":
        wrong = wrong or not isinstance(value, str) or value.startswith("-")
    elif flag.type == "json":
        wrong = wrong or not isinstance(value, (dict, list))
    if wrong:
        kind = "json" if flag.flag in JSON_TEXT else flag.type
        names = {"int": "a whole number", "float": "a number", "str": "a word", "json": "a table or an array"}
        return f"{flag.flag} takes {names[kind]}, not {value!r}"
    if flag.choices is not None and value not in flag.choices:
        close = difflib.get_close_matches(str(value), [str(c) for c in flag.choices], n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        return f"{flag.flag} takes one of {', '.join(map(str, flag.choices))}, not {value!r}{hint}"
    return None


def render_flag(flag: Flag, value: Any) -> list[str]:
    """The argv words of one checked value."""
    if flag.kind == "switch":
        return [flag.flag] if value else []
    if flag.kind == "toggle":
        return [flag.flag if value else "--no-" + flag.flag.removeprefix("--")]
    if flag.kind == "list":
        return [flag.flag, *(str(item) for item in value)]
    if flag.type == "json" or flag.flag in JSON_TEXT:
        return [flag.flag, json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [flag.flag, str(value)]


def parse_table(data: Mapping[str, Any]) -> FlagTable:
    flags = []
    for entry in data["flags"]:
        fields = dict(entry)
        fields["aliases"] = tuple(fields["aliases"])
        fields["choices"] = None if fields["choices"] is None else tuple(fields["choices"])
        flags.append(Flag(**fields))
    return FlagTable(data["version"], flags)


@functools.cache
def load_flags() -> FlagTable:
    """The flags of the engine this repository pins."""
    return parse_table(json.loads(FLAGS_FILE.read_text("utf-8")))
