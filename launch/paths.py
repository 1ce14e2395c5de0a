"""Where things lie. Every place has an environment variable that moves it."""

from __future__ import annotations

import os
from pathlib import Path


def repo_root() -> Path:
    """The folder that holds `launch/`: the checkout, or /opt/sparkserve in the image."""
    return Path(__file__).resolve().parent.parent


def _from_env(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return Path(value).expanduser().resolve() if value else default


def presets_dir() -> Path:
    return _from_env("SPARKSERVE_PRESETS", Path(__file__).resolve().parent / "presets")


def locks_dir() -> Path:
    return Path(__file__).resolve().parent / "locks"


def build_dir() -> Path:
    return _from_env("SPARKSERVE_BUILD", repo_root() / "build")


def fixtures_dir() -> Path:
    """Built fixture checkpoints, one folder each (`sparkserve fixtures build`)."""
    return _from_env("SPARKSERVE_FIXTURES", build_dir() / "fixtures")


def cpu_engine_dir() -> Path:
    """The folder put on PYTHONPATH to run the engine without a GPU (reference numerics)."""
    return _from_env("SPARKSERVE_CPU_ENGINE", repo_root() / "smoke" / "cpu_engine" / "shadow")


def hook_dir() -> Path:
    """Goes on the engine's PYTHONPATH to record, or to name, what it would compile."""
    return Path(__file__).resolve().parent / "hook"


def cache_dir() -> Path:
    base = _from_env("XDG_CACHE_HOME", Path.home() / ".cache")
    return _from_env("SPARKSERVE_CACHE", base / "sparkserve")


def state_dir() -> Path:
    """Logs and state of running servers."""
    base = _from_env("XDG_STATE_HOME", Path.home() / ".local" / "state")
    return _from_env("SPARKSERVE_STATE", base / "sparkserve")
