"""The table of P28 says what the runs in evidence/ measured, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = "sglang/kernels/ops/speculative/head_candidates_measured.py"


def entries() -> list[dict[str, Any]]:
    text = next(ROOT.glob("patches/*-p28-*.patch")).read_text().split(f"+++ b/{TABLE}\n", 1)[1]
    body = text.partition("\n--- ")[0].splitlines()[1:]
    scope: dict[str, Any] = {}
    exec("\n".join(line.removeprefix("+") for line in body), scope)  # our own file, with no import in it
    return list(scope["ENTRIES"])


def test_every_entry_was_measured_and_every_win_is_entered():
    measured = [
        entry
        for file in sorted((ROOT / "evidence" / "bench").glob("selector-*.json"))
        for entry in json.loads(file.read_text())["entries"]
    ]
    found = entries()
    assert found
    assert all(entry in measured for entry in found)
    assert [e for e in measured if e["winner"] == "kernel" and e not in found] == []


def test_an_engine_s_win_ends_the_kernel_s_rows():
    """The rule takes the fewest measured rows that hold the batch: where the engine won, its entry has to be there."""
    for entry in entries():
        lost = [
            e["rows"] for e in entries() if e["vocabulary"] == entry["vocabulary"] and e["winner"] == "engine"
        ]
        assert entry["winner"] == "engine" or all(entry["rows"] < r for r in lost)
