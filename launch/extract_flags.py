"""Write `engine_flags.json` from the argparse of the pinned engine.

`python -m launch.extract_flags` runs the engine's interpreter in a subprocess, because `launch` itself never
imports the engine. `--check` compares instead of writing (exit 1 when they differ).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch.errors import CheckFailed, ConfigError, SparkError
from launch.files import write_text

OUTPUT = Path(__file__).with_name("engine_flags.json")
DUMP = Path(__file__).with_name("_argparse_dump.py")

_TYPES = {
    None: "str",
    "str": "str",
    "nullable_str": "str",
    "int": "int",
    "human_readable_int": "int",
    "float": "float",
    "loads": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
    "parse_cuda_graph_backend_arg": "str",
}


def dump(python: str) -> dict[str, Any]:
    """What the engine's parser holds, as `_argparse_dump.py` prints it. About 20 s: it imports torch."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([python, str(DUMP)], capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        tail = (done.stderr.strip() or "no output").splitlines()[-1]
        raise ConfigError(f"{python}: cannot read the engine's flags: {tail}")
    # The engine may print warnings to stdout while it is imported; the dump is the last line.
    loaded: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return loaded


def convert(raw: dict[str, Any]) -> dict[str, Any]:
    """The file's content: one entry a flag, sorted by its canonical name."""
    flags = []
    for action in raw["actions"]:
        names = [n for n in action["names"] if n.startswith("--")]
        kind = _kind(action)
        if kind == "toggle":
            names = [n for n in names if not n.startswith("--no-")]
        if action["type"] not in _TYPES:
            raise ConfigError(
                f"{names[0]}: unknown argument type {action['type']!r}; teach launch.extract_flags"
            )
        entry = {
            "flag": names[0],
            "aliases": names[1:],
            "dest": action["dest"],
            "kind": kind,
            "type": "bool" if kind in ("switch", "toggle") else _TYPES[action["type"]],
            "nargs": action["nargs"] if kind == "list" else None,
            "choices": action["choices"],
            "default": action["default"],
            "help": re.sub(r"\s+", " ", action["help"] or "").strip(),
            "deprecated": action["new_flag"] if action["action"].startswith("Deprecated") else None,
        }
        flags.append(entry)
    flags.sort(key=lambda entry: str(entry["flag"]))
    version = raw["version"].partition("+")[0]
    return {"engine": "sglang", "version": version, "flags": flags}


def _kind(action: dict[str, Any]) -> str:
    if action["action"] == "BooleanOptionalAction":
        return "toggle"
    if action["action"] in ("_StoreTrueAction", "DeprecatedStoreTrueAction"):
        return "switch"
    if action["nargs"] in ("+", "*"):
        return "list"
    return "value"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line per flag that differs, by name and field."""
    before = {f["flag"]: f for f in old["flags"]}
    after = {f["flag"]: f for f in new["flags"]}
    lines = [f"{name}: gone" for name in sorted(before.keys() - after.keys())]
    lines += [f"{name}: new" for name in sorted(after.keys() - before.keys())]
    for name in sorted(before.keys() & after.keys()):
        for field, value in after[name].items():
            if before[name].get(field) != value:
                lines.append(f"{name}: {field} was {before[name].get(field)!r}, is {value!r}")
    if old["version"] != new["version"]:
        lines.append(f"version was {old['version']}, is {new['version']}")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.extract_flags", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the engine's environment")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    options = parser.parse_args(argv)
    try:
        new = convert(dump(options.python))
        if options.check:
            lines = differences(json.loads(options.output.read_text("utf-8")), new)
            if lines:
                raise CheckFailed("engine_flags.json is stale:\n" + "\n".join(lines))
        else:
            write_text(options.output, json.dumps(new, indent=1, ensure_ascii=False) + "\n")
    except SparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
