"""Reference outputs and log-probabilities of a planted fixture: oracle.json beside the checkpoint (smoke/fixtures)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "oracle.json"


@dataclass(frozen=True)
class Reference:
    """One prompt's greedy continuation (EOS ignored) and its natural-log probabilities at temperature 1."""

    name: str
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Oracle:
    """successor[t] is the token after t, whatever came before; tolerances in nats."""

    successor: tuple[int, ...]
    references: tuple[Reference, ...]
    mean_abs: float
    max_abs: float

    def walk(self, last: int, n: int) -> list[int]:
        out = []
        for _ in range(n):
            last = self.successor[last]
            out.append(last)
        return out


def parse(data: dict[str, Any]) -> Oracle:
    """Raises KeyError or ValueError when the file is not what this version writes."""
    if data.get("schema") != 1:
        raise ValueError(f"schema {data.get('schema')!r}, want 1")
    return Oracle(
        tuple(data["successor"]),
        tuple(
            Reference(p["name"], tuple(p["input_ids"]), tuple(p["output_ids"]), tuple(p["logprobs"]))
            for p in data["prompts"]
        ),
        float(data["tolerance"]["mean_abs"]),
        float(data["tolerance"]["max_abs"]),
    )


def find(model_path: str | None) -> Oracle | None:
    """The oracle of the checkpoint the engine serves, None when there is none on this machine."""
    path = Path(model_path or "/nonexistent") / NAME
    return parse(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def gaps(measured: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """(mean, max) of the absolute differences. Raises ValueError when the lengths differ or are zero."""
    if len(measured) != len(reference) or not reference:
        raise ValueError(f"{len(measured)} log-probabilities against {len(reference)}")
    d = [abs(a - b) for a, b in zip(measured, reference, strict=True)]
    return sum(d) / len(d), max(d)
