"""engine_flags.json against the engine itself, and the tools around it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from launch import extract_flags
from launch.errors import ConfigError
from launch.flags import load_flags


@pytest.mark.engine
def test_the_file_is_what_the_installed_engine_parses() -> None:
    new = extract_flags.convert(extract_flags.dump(sys.executable))
    assert extract_flags.differences(json.loads(extract_flags.OUTPUT.read_text("utf-8")), new) == []


def test_the_file_is_plausible() -> None:
    flags = load_flags()
    assert flags.version == "0.5.23"
    assert len(flags.flags) > 500
    assert flags.by_name["--speculative-draft-model"].flag == "--speculative-draft-model-path"
    assert flags.by_name["--no-lora-strict-loading"].kind == "toggle"
    assert "/root" not in extract_flags.OUTPUT.read_text("utf-8")


def action(**changes: Any) -> dict[str, Any]:
    base = {"names": ["--x"], "dest": "x", "action": "_StoreAction", "type": "int", "nargs": None}
    return {**base, "choices": None, "default": 1, "help": "h", "new_flag": None, **changes}


def test_differences_name_flag_and_field() -> None:
    def made(*actions: dict[str, Any], version: str = "1+spark.1") -> dict[str, Any]:
        return extract_flags.convert({"version": version, "actions": list(actions)})

    old = made(action(), action(names=["--gone"]))
    new = made(action(choices=[1, 2]), action(names=["--new"]), version="2")
    assert extract_flags.differences(old, old) == []
    assert extract_flags.differences(old, new) == [
        "--gone: gone",
        "--new: new",
        "--x: choices was None, is [1, 2]",
        "version was 1, is 2",
    ]


def test_an_argument_type_nobody_taught_us_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--x: unknown argument type 'complex'"):
        extract_flags.convert({"version": "1", "actions": [action(type="complex")]})


def test_an_environment_without_the_engine_is_named(tmp_path: Any) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no sglang' >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(ConfigError, match="no sglang"):
        extract_flags.dump(str(fake))
