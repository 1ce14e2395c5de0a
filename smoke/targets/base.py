"""What a target offers: an engine's address, its log, and control of its life, as far as the kind has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from smoke.wait import Life


@dataclass(frozen=True)
class Boot:
    """How to start: `control` names the preset of the arm without a draft, `offline` forbids the network,
    `no_compile` any compiler."""

    control: str | None = None
    offline: bool = False
    no_compile: bool = False


@dataclass(frozen=True)
class Identity:
    """What a report binds to, as far as the target can tell."""

    image: str | None = None
    image_digest: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


class NotRun(Exception):  # noqa: N818  (not an error)
    """The running check cannot be asked; it is reported as not run, with this reason.

    matters: a run that leaves it out is not complete. False where the preset itself rules the check out.
    """

    def __init__(self, reason: str, *, matters: bool = True) -> None:
        super().__init__(reason)
        self.matters = matters


class Target(Protocol):
    """One engine under test.

    network() says in words which network the engine's container has, None where that cannot be told; "lo only" is none.
    memory_available() is the host's in bytes; memory_used() what the engine's own processes hold in RAM, None if unknown.
    cut() ends the engine at once and does not wait; it is called from a signal handler. stop() follows it later.

    owns: the target starts and stops the engine. has_log: `log()` is the engine's log of the current boot,
    else it is empty. supervised: a killed child is expected to come back by itself.
    """

    kind: str
    url: str
    api_key: str | None
    owns: bool
    has_log: bool
    supervised: bool

    def start(self, boot: Boot) -> None: ...
    def stop(self) -> None: ...
    def cut(self) -> None: ...
    def life(self) -> Life: ...
    def log(self) -> str: ...
    def kill_child(self) -> None: ...
    def kernels(self) -> dict[str, float] | None: ...
    def network(self) -> str | None: ...
    def identity(self) -> Identity: ...
    def memory_available(self) -> int | None: ...
    def memory_used(self) -> int | None: ...
    def host_path(self, path: str) -> str: ...
    def tidy(self, *, keep: bool) -> str | None: ...


def read_meminfo(path: str = "/proc/meminfo") -> int | None:
    """MemAvailable in bytes; on unified memory it is the GPU's pool too."""
    try:
        with open(path) as f:  # noqa: PTH123
            for line in f:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
