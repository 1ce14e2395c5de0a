"""Parsers of the kernel's own tables. Pure: text in, figures in bytes out; a field that is absent or garbage is None.

Sources: proc(5) `meminfo`; Documentation/accounting/psi.rst; Documentation/admin-guide/cgroup-v1/memory.rst and
cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

KIB = 1024
# ASCII only, and no longer than a 64-bit figure: `int` takes other digits and refuses thousands of them.
NUMBER = "[0-9]{1,20}"
# cgroup v1 writes "no limit" as a page-rounded number near 2**63.
UNLIMITED_V1 = 1 << 62


@dataclass(frozen=True)
class Meminfo:
    """Bytes from /proc/meminfo. `available` is the kernel's own estimate of what can be taken without swapping."""

    total: int
    free: int
    available: int
    cached: int
    swap_total: int
    swap_free: int

    @property
    def swap_used(self) -> int:
        return max(0, self.swap_total - self.swap_free)


def parse_meminfo(text: str) -> Meminfo | None:
    """None when MemTotal or MemAvailable cannot be read: nothing may be concluded from such a table."""
    rows: dict[str, int] = {}
    for line in text.splitlines():
        m = re.match(rf"(\w+(?:\(\w+\))?):\s+({NUMBER})(?:\s+kB)?\s*$", line)
        if m:
            rows[m[1]] = int(m[2]) * KIB
    total, available = rows.get("MemTotal"), rows.get("MemAvailable")
    if not total or available is None or available > total:
        return None
    return Meminfo(
        total=total,
        free=min(rows.get("MemFree", 0), total),
        available=available,
        cached=rows.get("Cached", 0) + rows.get("Buffers", 0) + rows.get("SReclaimable", 0),
        swap_total=rows.get("SwapTotal", 0),
        swap_free=min(rows.get("SwapFree", 0), rows.get("SwapTotal", 0)),
    )


@dataclass(frozen=True)
class Pressure:
    """One line of /proc/pressure/memory: shares in percent over 10 s and 60 s, `total` in microseconds stalled."""

    avg10: float
    avg60: float
    total_us: int


def parse_pressure(text: str) -> dict[str, Pressure]:
    """`some` and `full` of a PSI file; empty when the kernel has none."""
    out = {}
    for line in text.splitlines():
        share = r"([0-9]{1,3}(?:\.[0-9]{1,6})?)"
        m = re.match(rf"(some|full) avg10={share} avg60={share} avg300={share} total=({NUMBER})\s*$", line)
        if m:
            out[m[1]] = Pressure(float(m[2]), float(m[3]), int(m[5]))
    return out


@dataclass(frozen=True)
class CgroupPaths:
    """Where this process's memory controller is: version 1 or 2 and the path below its mount."""

    version: int
    mount: str
    path: str


def parse_cgroup(cgroup: str, mounts: str) -> CgroupPaths | None:
    """From /proc/self/cgroup and /proc/self/mounts; version 1's memory controller wins in a hybrid set-up."""
    mount: dict[int, str] = {}
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) < 4:
            continue
        if parts[2] == "cgroup" and "memory" in parts[3].split(","):
            mount[1] = parts[1]
        elif parts[2] == "cgroup2":
            mount[2] = parts[1]
    found: dict[int, str] = {}
    for line in cgroup.splitlines():
        m = re.match(rf"({NUMBER}):([^:]*):(/.*)$", line)
        if not m:
            continue
        if "memory" in m[2].split(","):
            found[1] = m[3]
        elif m[1] == "0" and m[2] == "":
            found[2] = m[3]
    for version in (1, 2):
        if version in found and version in mount:
            return CgroupPaths(version, mount[version], found[version])
    return None


def parse_limit(text: str) -> int | None:
    """A cgroup limit in bytes; None for no limit (`max`, or version 1's huge number) and for garbage."""
    value = parse_int(text)
    return None if value is None or value < 0 or value >= UNLIMITED_V1 else value


def parse_stat(text: str) -> dict[str, int]:
    """memory.stat: name to bytes."""
    out = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if re.fullmatch(NUMBER, value.strip()):
            out[name] = int(value)
    return out


def parse_int(text: str) -> int | None:
    """A file that holds one number."""
    text = text.strip()
    return int(text) if re.fullmatch(f"-?{NUMBER}", text) else None


def parse_cpu_flags(cpuinfo: str) -> set[str]:
    """`flags` (x86) or `Features` (arm) of the first processor."""
    m = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.M)
    return set(m[1].split()) if m else set()


@dataclass(frozen=True)
class Earlyoom:
    """When earlyoom sends SIGTERM: available memory and free swap both below these (percent of total, or bytes)."""

    memory_percent: float | None
    memory_bytes: int | None
    swap_percent: float

    def floor_bytes(self, total: int) -> int:
        """The MemAvailable figure, in bytes, below which it kills on a machine of `total` bytes."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return int(total * (self.memory_percent or 0) / 100)


def parse_earlyoom(cmdline: list[str]) -> Earlyoom:
    """Its defaults are 10 % of memory and of swap; -m PERCENT[,KILL], -M KIB[,KILL], -s PERCENT (earlyoom(1))."""
    percent: float | None = 10.0
    size: int | None = None
    swap = 10.0
    for flag, value in _options(cmdline, "mMs"):
        first = value.split(",")[0]
        if not re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{1,6})?", first):
            continue
        number = float(first)
        if flag == "m":
            percent = number
        elif flag == "M":
            size = int(number) * KIB
        else:
            swap = number
    return Earlyoom(percent if size is None else None, size, swap)


@dataclass(frozen=True)
class Oomd:
    """When systemd-oomd kills a unit it watches: swap and memory used, and lasting memory pressure (percent, seconds)."""

    swap_percent: float = 90.0
    pressure_percent: float = 60.0
    pressure_seconds: float = 30.0


def parse_oomd(texts: Iterable[str]) -> Oomd:
    """oomd.conf and its drop-ins in order, the last word counts (oomd.conf(5), whose defaults these are)."""
    found: dict[str, float] = {}
    names = {
        "SwapUsedLimit": "swap_percent",
        "DefaultMemoryPressureLimit": "pressure_percent",
        "DefaultMemoryPressureDurationSec": "pressure_seconds",
    }
    for line in (line for text in texts for line in text.splitlines()):
        key, _, value = (part.strip() for part in line.partition("="))
        number = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(%|‰|‱|s|sec|min|m)?", value)
        if key in names and number:
            unit = {"‰": 0.1, "‱": 0.01, "min": 60.0, "m": 60.0}.get(number[2] or "", 1.0)
            found[names[key]] = round(float(number[1]) * unit, 6)
    return Oomd(**found)


def _options(argv: list[str], letters: str) -> list[tuple[str, str]]:
    """(letter, value) for `-m 5` and `-m5`."""
    out = []
    rest = iter(argv[1:])
    for word in rest:
        if len(word) >= 2 and word[0] == "-" and word[1] in letters:
            value = word[2:] or next(rest, "")
            out.append((word[1], value))
    return out
