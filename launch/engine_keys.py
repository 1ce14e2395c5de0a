"""What a preset may say under [engine]: typed against the engine's flags, minus what the launcher sets."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence

from launch.errors import ConfigError, UsageError
from launch.flags import FlagTable, label, load_flags
from launch.preset import COMPUTED, EngineValue, Preset

# Keys with one owner elsewhere. A second place to say it would be a second truth.
OWNED = {
    "model_path": "[target] gives the checkpoint",
    "revision": "[target] gives the revision",
    "host": "serve --host sets it",
    "port": "serve --port sets it",
    "api_key": "a secret never stands in a preset; use serve --api-key-file",
    "admin_api_key": "a secret never stands in a preset; use serve --api-key-file",
    "ssl_keyfile_password": "a secret never stands in a preset",
    "config": "a preset is the configuration",
    "served_model_name": "the preset's name is served; change it with serve --served-model-name",
    "speculative_algorithm": "[draft] algorithm sets it",
    "speculative_draft_model_path": "[draft] gives the checkpoint",
    "speculative_draft_model_revision": "[draft] gives the revision",
    "speculative_draft_model_quantization": "[draft] quantization sets it",
    "speculative_num_draft_tokens": "[draft] tokens sets it",
    "speculative_dflash_block_size": "[draft] tokens sets it",
}

# Valid for the parser, wrong for what we serve; with the reason.
DENIED = {
    "speculative_draft_window_size": (
        "it kills the scheduler with DFlash2 drafts (pangoleen); the draft's own window applies"
    ),
    "quantization": (
        "leave it out: the checkpoint declares its quantization, and a plain draft would inherit "
        "the value given here"
    ),
}

DENIED_VALUES: dict[tuple[str, str], str] = {
    (
        "kv_cache_dtype",
        "nvfp4",
    ): "accepted on SM12x but reported to loop on token 0 (sglang#36537); use fp8_e4m3",
}


def check_engine(preset: Preset, table: FlagTable | None = None) -> None:
    """Raise ConfigError when a key or value of the preset is not one the pinned engine takes."""
    flags = table or load_flags()
    check_keys(flags, preset.engine, "engine")
    for name, override in preset.machine.items():
        check_keys(flags, override.engine, f"machine.{name}")
    for where, env in [
        ("env", preset.env),
        *((f"machine.{n}.env", o.env) for n, o in preset.machine.items()),
    ]:
        for variable in env:
            if any(word in variable.upper() for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY")):
                raise ConfigError(f"{where}.{variable}: a secret never stands in a preset; pass it as a file")


def check_keys(flags: FlagTable, engine: Mapping[str, object], where: str) -> None:
    """The same for one table of engine keys."""
    for key, value in engine.items():
        if key in OWNED:
            raise ConfigError(f"{label(where, key)}: {OWNED[key]}")
        if key in DENIED:
            raise ConfigError(f"{label(where, key)}: {DENIED[key]}")
        if key == "mamba_full_memory_ratio" and value == COMPUTED:
            continue
        if isinstance(value, str) and (key, value) in DENIED_VALUES:
            raise ConfigError(f"{label(where, key)} = {value!r}: {DENIED_VALUES[key, value]}")
        flags.check(key, value, where)
        # The engine's parser takes any number here, and fails minutes later. `not` refuses nan as well.
        if key == "mem_fraction_static" and not 0 < float(str(value)) < 1:
            raise ConfigError(f"{label(where, key)}: a fraction of memory lies between 0 and 1, not {value}")
        if key == "max_running_requests" and not int(str(value)) >= 1:
            raise ConfigError(f"{label(where, key)}: a server takes at least 1 request at once, not {value}")


def parse_settings(settings: Sequence[str]) -> dict[str, EngineValue]:
    """`key=value` words of `serve --set`, values as TOML (a bare word is a string), checked like a preset's keys.

    Raises UsageError for a word without `=`, ConfigError for what the engine would not take.
    """
    parsed: dict[str, EngineValue] = {}
    for word in settings:
        key, equals, text = word.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not key or not equals:
            raise UsageError(f"--set {word}: write key=value, e.g. --set mem_fraction_static=0.6")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text
        parsed[key] = value
    check_keys(load_flags(), parsed, "--set")
    return parsed
