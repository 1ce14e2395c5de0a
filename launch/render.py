"""argv(Resolved, …) -> Command: the engine's command line as a list of words and its environment. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.errors import ConfigError
from launch.flags import load_flags, render_flag
from launch.preset import COMPUTED, Checkpoint
from launch.resolve import Resolved

DRAFT_OVERRIDES = "SGLANG_DRAFT_MODEL_OVERRIDE_ARGS"  # patch P04


@dataclass(frozen=True, slots=True)
class Places:
    """Paths that differ between machines, kept out of the pure part."""

    python: str
    fixtures: Path
    cpu_engine: Path


@dataclass(frozen=True, slots=True)
class Command:
    """What to exec. `env` is set, `unset` is removed from the inherited environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...] = ()

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The child's environment. A PYTHONPATH of ours goes in front of an inherited one."""
        env = {k: v for k, v in inherited.items() if k not in self.unset}
        for key, value in self.env.items():
            inherited_path = env.get(key) if key == "PYTHONPATH" else None
            env[key] = f"{value}:{inherited_path}" if inherited_path else value
        return env

    def shell(self) -> str:
        """The command as a line that can be pasted into a shell."""
        words = [f"-u{name}" for name in self.unset]
        words += [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        prefix = ["env", *words] if words else []
        return " ".join([*prefix, *(shlex.quote(word) for word in self.argv)])

    def lines(self) -> str:
        """The same, one flag a line: for reading and for golden files."""
        words = list(self.argv)
        first = next((i for i, w in enumerate(words) if w.startswith("--")), len(words))
        groups: list[list[str]] = []
        for word in words[first:]:
            if word.startswith("--") or not groups:
                groups.append([])
            groups[-1].append(word)
        head = [f"unset {name}" for name in self.unset]
        head += [f"export {key}={shlex.quote(value)}" for key, value in self.env.items()]
        body = [shlex.join(words[:first]), *("  " + shlex.join(group) for group in groups)]
        return "\n".join([*head, " \\\n".join(body)]) + "\n"


def argv(
    resolved: Resolved,
    places: Places,
    *,
    host: str = "127.0.0.1",
    port: int = 30000,
    served_model_name: str | None = None,
    config_file: Path | None = None,
) -> Command:
    """The engine's command line.

    `config_file` is a YAML file the engine merges in (the API key travels that way, never in argv).
    Raises ConfigError when a value that must be computed is not.
    """
    preset, draft = resolved.preset, resolved.preset.draft
    words = [places.python, "-m", "sglang.launch_server"]
    if config_file is not None:
        words += ["--config", str(config_file)]
    words += ["--model-path", model_path(preset.target, places)]
    if preset.target.revision:
        words += ["--revision", preset.target.revision]
    words += ["--served-model-name", served_model_name or preset.name]
    words += ["--host", host, "--port", str(port)]
    if draft is not None:
        words += ["--speculative-algorithm", draft.algorithm]
        if not draft.in_target:
            words += ["--speculative-draft-model-path", model_path(draft, places)]
        if draft.revision:
            words += ["--speculative-draft-model-revision", draft.revision]
        words += ["--speculative-draft-model-quantization", draft.quantization]
        words += ["--speculative-num-draft-tokens", str(draft.tokens)]
    flags = load_flags()
    for key, value in resolved.engine.items():
        if value == COMPUTED and key == "mamba_full_memory_ratio":
            raise ConfigError(
                f"{preset.name}: mamba_full_memory_ratio is still {COMPUTED!r}; compute it before argv"
            )
        words += render_flag(flags.by_key[key], value)
    env = dict(resolved.env)
    # sglang's start spawns three interpreters; without bytecode each compiles it anew (90 s instead of 29 s).
    unset = ("PYTHONDONTWRITEBYTECODE",)
    if preset.target.repo is not None:
        # Only what was pulled and verified is served; both revisions are pinned, so offline starts work.
        env["HF_HUB_OFFLINE"] = "1"
    if (stretched := draft_limit(resolved)) is not None:
        env.setdefault(DRAFT_OVERRIDES, stretched)
    if resolved.machine.name == "cpu":
        env["PYTHONPATH"] = str(places.cpu_engine)
    return Command(tuple(words), dict(sorted(env.items())), unset)


def draft_limit(resolved: Resolved) -> str | None:
    """JSON overrides a draft of its own needs beside a stretched target, or None.

    The engine holds the draft to the served context and refuses one whose own limit is shorter (model_config.py
    `_derive_context_length`). Only that limit is lifted: the draft's RoPE stays as it was trained.
    """
    draft, context = resolved.preset.draft, resolved.engine.get("context_length")
    if draft is None or draft.in_target or not isinstance(context, int):
        return None
    if not resolved.engine.get("json_model_override_args"):
        return None
    return json.dumps({"max_position_embeddings": context}, separators=(",", ":"))


def model_path(checkpoint: Checkpoint, places: Places) -> str:
    """What --model-path gets: the hub's id (it keys the engine's tactic cache) or a folder."""
    if checkpoint.fixture is not None:
        return str(places.fixtures / checkpoint.fixture)
    assert checkpoint.repo is not None
    return checkpoint.repo
