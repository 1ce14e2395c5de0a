"""What was built already, by a key over everything that decides the result; and how many compilers fit into memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GIB = 1 << 30
KEEP_FREE_GIB = 1.5  # for the machine and the linker


def key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def source_key(paths: Iterable[Path], *parts: object) -> str:
    """A key over the contents of `paths` (names do not matter: they lie elsewhere on another machine) and `parts`."""
    return key(sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in paths), *parts)


def jobs(available_bytes: int, gib_each: float, cpus: int) -> int:
    """Compiler processes side by side: what memory holds, never more than processors, never none."""
    return max(1, min(cpus, int((available_bytes / GIB - KEEP_FREE_GIB) / gib_each)))


def available(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo in bytes."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo names no MemAvailable")


class Store:
    """Finished objects, each in a folder of its key beside its record. A folder is there whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str, key_: str) -> Path:
        return self.root / f"{name[:100]}-{key_}"

    def find(self, name: str, key_: str) -> dict[str, Any] | None:
        """The record of a finished build whose object is still what was stored, else None."""
        folder = self.folder(name, key_)
        try:
            row = json.loads((folder / "row.json").read_text())
            ok = hashlib.sha256((folder / f"{name}.so").read_bytes()).hexdigest() == row["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return row if ok else None

    def add(self, name: str, key_: str, so: Path, row: dict[str, Any]) -> dict[str, Any]:
        folder = self.folder(name, key_)
        tmp = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        shutil.copy2(so, tmp / f"{name}.so")
        data = so.read_bytes()
        row = {**row, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (tmp / "row.json").write_text(json.dumps(row, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        tmp.replace(folder)
        return row
