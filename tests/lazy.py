"""Modules imported when they are first used: ring one collects the engine's tests too, and must not pay for torch."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for the module `name`; the first attribute asked of it imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # what pytest asks of every name it collects
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
