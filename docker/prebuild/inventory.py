"""Which architectures a shared object holds machine code for, as cuobjdump tells. Pure, but for running it."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_ELF = re.compile(r"^\s*ELF file\s+\d+:\s+\S*?\.(sm_\d+[a-z]?)\.cubin\s*$", re.M)
_PTX = re.compile(r"^\s*PTX file\s+\d+:\s+\S*?\.(sm_\d+[a-z]?)\.ptx\s*$", re.M)


class InventoryError(Exception):
    """An object without the machine code it is listed for, or one that cannot be read."""


def parse(listing: str) -> dict[str, int]:
    """Machine-code images by architecture in the output of `cuobjdump --list-elf`; PTX counts under `ptx:`."""
    found = Counter(_ELF.findall(listing))
    found.update(f"ptx:{name}" for name in _PTX.findall(listing))
    return dict(sorted(found.items()))


def of(so: Path, cuobjdump: str = "cuobjdump") -> dict[str, int]:
    """Raises InventoryError when the tool is missing or says that the file holds no device code."""
    try:
        done = subprocess.run(
            [cuobjdump, "--list-elf", str(so)], capture_output=True, text=True, check=False, timeout=120
        )
    except OSError as e:
        raise InventoryError(f"cannot run {cuobjdump}: {e.strerror}; name it with --cuobjdump") from e
    found = parse(done.stdout)
    if done.returncode and not found:
        raise InventoryError(f"{so.name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return found


def check(name: str, found: dict[str, int], accepts: Sequence[str]) -> None:
    """Raises InventoryError when none of the architectures that will do is in `found`. PTX does not do: it compiles at boot."""
    if not any(arch in found for arch in accepts):
        has = ", ".join(found) or "no machine code"
        raise InventoryError(f"{name}: needs {' or '.join(accepts)}, has {has}")
