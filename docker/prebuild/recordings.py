"""From what boots asked for (written by launch/hook/sitecustomize.py) to a list that `prebuild build --also` takes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Every line of every `*.jsonl`; a last line cut by a kill is left out."""
    rows = []
    for folder in folders:
        for file in sorted(folder.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                try:
                    rows.append({**json.loads(line), "boot": folder.name})
                except ValueError:
                    continue
    return rows


def merged(rows: list[dict[str, Any]], arch: str) -> dict[str, Any]:
    """One entry per module, with the boots that asked for it; `unknown` are those recorded without their call."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    boots: dict[tuple[str, str], set[str]] = {}
    for r in rows:
        k = (r["kind"], r["name"])
        boots.setdefault(k, set()).add(r["boot"])
        if k not in found or (not found[k].get("call") and r.get("call")):
            found[k] = r
    modules, unknown = [], []
    for k in sorted(found):
        r = found[k]
        if not r.get("call") or r["kind"] not in ("flashinfer", "sglang"):
            unknown.append({"kind": r["kind"], "name": r["name"], "boots": sorted(boots[k])})
            continue
        modules.append(
            {
                "kind": r["kind"],
                "name": r["name"],
                "call": r["call"],
                "args": r.get("args", []),
                "kwargs": r.get("kwargs", {}),
                "archs": [arch],
                "known": "recorded",
                "seen": f"boots: {', '.join(sorted(boots[k]))}",
            }
        )
    return {"schema": 1, "arch": {}, "module": modules, "absent": [], "unknown": unknown}
