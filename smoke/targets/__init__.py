"""Targets: `docker` and `process` own the engine's life, `url` borrows it."""

from smoke.targets.base import Boot, Identity, NotRun, Target

__all__ = ["Boot", "Identity", "NotRun", "Target"]
