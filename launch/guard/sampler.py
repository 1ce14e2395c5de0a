"""Read the guard's figures twice a second, cheaply: file handles stay open and are read again from their start."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from launch.guard.policy import Sample
from launch.host import measure, procfs

# What the NVIDIA kernel driver prints when it cannot get memory (pains.md 1).
DRIVER_OUT_OF_MEMORY = re.compile(r"NVRM:.*(?:NV_ERR_NO_MEMORY|[Oo]ut of memory)")


class Sampler:
    """Samples MemAvailable (capped by the cgroup's headroom), swap, PSI and the kernel log below `root`.

    `/dev/kmsg` is read where it may be; a container without it has `driver_lines` empty, and `sees_kernel_log` says so.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._fds: dict[str, int] = {}
        self._kmsg = self._open_kmsg(root)
        # Where the limit is does not change while we run; what is used does.
        self._cgroup = procfs.parse_cgroup(
            measure.read(root, "proc/self/cgroup"), measure.read(root, "proc/self/mounts")
        )
        limit = measure.tightest(root, self._cgroup) if self._cgroup else None
        if limit is None or limit.limit is None:
            self._cgroup = None

    @property
    def sees_kernel_log(self) -> bool:
        return self._kmsg is not None

    @property
    def reads_cgroup(self) -> bool:
        """Whether a cgroup limit caps what is available."""
        return self._cgroup is not None

    @staticmethod
    def _open_kmsg(root: Path) -> int | None:
        try:
            fd = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.lseek(fd, 0, os.SEEK_END)  # only what is said from now on
        return fd

    def _text(self, path: str) -> str:
        try:
            fd = self._fds.get(path)
            if fd is None:
                fd = self._fds[path] = os.open(self._root / path, os.O_RDONLY)
            return os.pread(fd, 16384, 0).decode(errors="replace")
        except OSError:
            return ""

    def _driver_lines(self) -> tuple[str, ...]:
        if self._kmsg is None:
            return ()
        lines = []
        while True:
            try:
                record = os.read(self._kmsg, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before we read them: go on with the next
                continue
            except OSError:
                break
            if not record:
                break
            text = record.decode(errors="replace").partition(";")[2] or record.decode(errors="replace")
            lines += [line for line in text.splitlines() if DRIVER_OUT_OF_MEMORY.search(line)]
        return tuple(lines)

    def sample(self) -> Sample | None:
        """None when memory cannot be read, which the caller must not take for plenty."""
        memory = procfs.parse_meminfo(self._text("proc/meminfo"))
        if memory is None:
            return None
        available = memory.available
        if self._cgroup is not None:
            cgroup = measure.tightest(self._root, self._cgroup)
            if cgroup is not None and cgroup.headroom is not None:
                available = min(available, cgroup.headroom)
        full = procfs.parse_pressure(self._text("proc/pressure/memory")).get("full")
        return Sample(
            t=time.monotonic(),
            available=available,
            swap_used=memory.swap_used,
            full_us=full.total_us if full else None,
            driver_lines=self._driver_lines(),
        )

    def close(self) -> None:
        for fd in [*self._fds.values(), *([self._kmsg] if self._kmsg is not None else [])]:
            os.close(fd)
        self._fds.clear()
        self._kmsg = None
