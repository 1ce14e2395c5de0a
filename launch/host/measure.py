"""Measure this machine: one snapshot of everything that decides whether a model may be loaded.

Everything is read below `root`, so that a captured machine (a folder with its /proc and /sys files) measures like a live one.
What cannot be read is None, never a guess.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from launch.host import procfs
from launch.host.procfs import CgroupPaths, Earlyoom, Meminfo, Oomd, Pressure

DESKTOPS = frozenset(
    {"gnome-shell", "plasmashell", "Xorg", "Xwayland", "kwin_wayland", "kwin_x11", "mutter", "sway"}
    | {"xfce4-session", "cinnamon"}
)
KILLERS = frozenset({"earlyoom", "systemd-oomd", "oomd", "nohang"})


@dataclass(frozen=True)
class Cgroup:
    """The tightest memory limit on the path from this process's cgroup to the root, in bytes."""

    version: int
    limit: int | None
    current: int | None
    reclaimable: int

    @property
    def headroom(self) -> int | None:
        """Bytes until the limit, page cache counted as free; None without a limit."""
        if self.limit is None:
            return None
        return max(0, self.limit - (self.current or 0) + self.reclaimable)


@dataclass(frozen=True)
class Process:
    """A process that matters to the plan."""

    pid: int
    name: str


@dataclass(frozen=True)
class Host:
    """One snapshot. Sizes in bytes."""

    memory: Meminfo | None
    pressure: dict[str, Pressure]
    cgroup: Cgroup | None
    min_free: int | None
    swappiness: int | None
    shm_total: int | None
    shm_used: int | None
    cpu_flags: frozenset[str]
    killers: tuple[Process, ...] = ()
    earlyoom: Earlyoom | None = None
    oomd: Oomd | None = None
    desktop: tuple[Process, ...] = ()
    kernel: str = ""
    problems: tuple[str, ...] = field(default=())

    @property
    def available(self) -> int | None:
        """What a start may take: MemAvailable, less when a cgroup leaves less. None when it cannot be told."""
        if self.memory is None:
            return None
        head = self.cgroup.headroom if self.cgroup else None
        return self.memory.available if head is None else min(self.memory.available, head)


def read(root: Path, path: str) -> str:
    """A file's text, or an empty string when it is absent or unreadable."""
    try:
        return (root / path).read_text(errors="replace")
    except OSError:
        return ""


def cgroup_memory(root: Path) -> Cgroup | None:
    """The tightest limit among the process's cgroup and its parents."""
    where = procfs.parse_cgroup(read(root, "proc/self/cgroup"), read(root, "proc/self/mounts"))
    return None if where is None else tightest(root, where)


def tightest(root: Path, where: CgroupPaths) -> Cgroup | None:
    """The limit that leaves least, from `where` up to the mount. A folder without figures is none."""
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if where.version == 1
        else ("memory.max", "memory.current")
    )
    found: Cgroup | None = None
    for folder in _folders(where):
        limit = procfs.parse_limit(read(root, f"{folder}/{names[0]}"))
        current = procfs.parse_int(read(root, f"{folder}/{names[1]}"))
        stat = procfs.parse_stat(read(root, f"{folder}/memory.stat"))
        cache = stat.get("total_inactive_file" if where.version == 1 else "inactive_file", 0)
        here = Cgroup(where.version, limit, current, cache)
        if found is None or (here.headroom is not None and _less(here.headroom, found.headroom)):
            found = here
    return found


def _less(a: int, b: int | None) -> bool:
    return b is None or a < b


def _folders(where: CgroupPaths) -> list[str]:
    """The process's cgroup folder and its parents up to the mount.

    In a container the path names the host's tree while the mount shows only the container's own: then the mount
    itself is what there is, and it comes last in any case.
    """
    mount = where.mount.lstrip("/")
    parts = [p for p in where.path.split("/") if p]
    return [f"{mount}/{'/'.join(parts[:n])}".rstrip("/") for n in range(len(parts), -1, -1)]


def processes(root: Path) -> list[tuple[Process, list[str]]]:
    """Every process with its command line, from /proc."""
    found = []
    try:
        entries = [p for p in (root / "proc").iterdir() if p.name.isdigit()]
    except OSError:
        return []
    for entry in entries:
        name = read(root, f"proc/{entry.name}/comm").strip()
        if name:
            argv = read(root, f"proc/{entry.name}/cmdline").split("\0")
            found.append((Process(int(entry.name), name), [a for a in argv if a]))
    return sorted(found, key=lambda item: item[0].pid)


def shm(root: Path) -> tuple[int | None, int | None]:
    """(total, used) bytes of /dev/shm; a captured machine has them in `dev/shm.statvfs` as two numbers."""
    captured = read(root, "dev/shm.statvfs").split()
    if len(captured) == 2:
        return procfs.parse_int(captured[0]), procfs.parse_int(captured[1])
    try:
        st = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return st.f_frsize * st.f_blocks, st.f_frsize * (st.f_blocks - st.f_bfree)


def oomd_files(root: Path) -> list[str]:
    """systemd-oomd's settings in the order they count: the vendor's or the administrator's file, then drop-ins by name."""
    main = read(root, "etc/systemd/oomd.conf") or read(root, "usr/lib/systemd/oomd.conf")
    drops: dict[str, Path] = {}
    for folder in ("usr/lib/systemd", "run/systemd", "etc/systemd"):
        drops |= {f.name: f for f in (root / folder / "oomd.conf.d").glob("*.conf")}
    return [main, *(read(root, str(drops[name].relative_to(root))) for name in sorted(drops))]


def measure(root: Path = Path("/")) -> Host:
    """Read the machine below `root`."""
    problems = []
    memory = procfs.parse_meminfo(read(root, "proc/meminfo"))
    if memory is None:
        problems.append("/proc/meminfo gives no MemTotal and MemAvailable: memory cannot be judged")
    running = processes(root)
    killers = tuple(p for p, _ in running if p.name in KILLERS)
    early = next((procfs.parse_earlyoom(argv) for p, argv in running if p.name == "earlyoom"), None)
    watched = any(p.name in ("systemd-oomd", "oomd") for p in killers)
    min_free_kib = procfs.parse_int(read(root, "proc/sys/vm/min_free_kbytes"))
    total, used = shm(root)
    return Host(
        memory=memory,
        pressure=procfs.parse_pressure(read(root, "proc/pressure/memory")),
        cgroup=cgroup_memory(root),
        min_free=None if min_free_kib is None else min_free_kib * procfs.KIB,
        swappiness=procfs.parse_int(read(root, "proc/sys/vm/swappiness")),
        shm_total=total,
        shm_used=used,
        cpu_flags=frozenset(procfs.parse_cpu_flags(read(root, "proc/cpuinfo"))),
        killers=killers,
        earlyoom=early,
        oomd=procfs.parse_oomd(oomd_files(root)) if watched else None,
        desktop=tuple(p for p, _ in running if p.name in DESKTOPS),
        kernel=read(root, "proc/sys/kernel/osrelease").strip(),
        problems=tuple(problems),
    )
