"""What is wrong with this machine, and what mends it: pure findings over gathered evidence.

PASS, WARN (works, but will hurt), FAIL (will not work or freezes). `launch.doctor_gather` collects the evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from launch.guard.policy import GIB, Limits
from launch.host.measure import Host
from launch.machine import CLASSES

# CUDA 13.0 user space, as pinned by docker/locks; a driver tells the newest CUDA it can run in nvidia-smi's header.
CUDA_NEEDED = (13, 0)
MIN_DISK = 40 * GIB  # target, draft, and room for compiled kernels: 20.6 + 3.85 GB in facts 2.1 and 2.2
MIN_SHM = 64 << 20  # Docker's default, with which torch's queues are at their limit
CLOCK_S = 300.0  # TLS and hub signatures begin to fail
# (pattern of the kernel release, pattern of the driver, what happens, source). Our sources (facts, pains) report freezes
# of unified machines on every driver and tie none to a version, so there is no row yet; a row needs a source.
KNOWN_BAD: tuple[tuple[str, str, str, str], ...] = ()


class Level(StrEnum):
    """How bad."""

    PASS = "PASS"  # noqa: S105
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One finding; `mend` says what to do and is empty for PASS."""

    name: str
    level: Level
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class Docker:
    """What `docker info` said. `error` is its first line when it did not answer."""

    installed: bool
    error: str = ""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    cdi: bool = False


@dataclass(frozen=True)
class Evidence:
    """Everything the findings rest on. None: could not be asked."""

    host: Host
    machine: str | None
    arch: str
    docker: Docker | None  # None: this runs in our container, where the host's Docker is out of reach
    gpu_names: tuple[str, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpu_processes: tuple[str, ...] = ()
    disk_free: int | None = None
    disk_place: str = ""
    hub: str | None = None  # None: it answered; otherwise why not
    hub_asked: bool = True
    clock_off_s: float | None = None
    known_bad: tuple[tuple[str, str, str, str], ...] = field(default=KNOWN_BAD)


def diagnose(e: Evidence) -> list[Check]:
    """Every finding, in the order an operator should read them."""
    found = [
        _memory(e), _driver(e), _combination(e), _gpu_users(e), _cpu(e), _docker(e), _toolkit(e), _earlyoom(e),
        _oomd(e), _swap(e), _shm(e), _desktop(e), _min_free(e), _disk(e), _hub(e), _clock(e),
    ]  # fmt: skip
    return [c for c in found if c is not None]


def _unified(e: Evidence) -> bool:
    return e.machine is not None and CLASSES[e.machine].unified  # type: ignore[index,unused-ignore]


def gib(n: int) -> str:
    return f"{n / GIB:.1f} GiB"


def _memory(e: Evidence) -> Check:
    m = e.host.memory
    if m is None or e.host.available is None:
        return Check(
            "memory", Level.FAIL, "; ".join(e.host.problems), "nothing can be admitted without figures"
        )
    detail = f"{gib(e.host.available)} of {gib(m.total)} available"
    limit = e.host.cgroup.limit if e.host.cgroup else None
    if limit is not None and limit < m.total:
        detail += f", a cgroup limits this process to {gib(limit)}"
    if _unified(e) and e.host.available < m.total * 0.8:
        return Check(
            "memory", Level.WARN, detail, "end what holds the rest before a start: ps aux --sort=-rss | head"
        )
    return Check("memory", Level.PASS, detail)


def _driver(e: Evidence) -> Check:
    if not e.gpu_names:
        mend = "install the driver" if e.docker else "docker run --gpus all; on the host, install the driver"
        return Check("driver", Level.WARN, "no NVIDIA GPU found: only fixtures can be served", mend)
    names = ", ".join(e.gpu_names)
    if e.driver is None or e.cuda is None:
        return Check(
            "driver", Level.FAIL, f"{names}: nvidia-smi does not answer", "reinstall the driver, then reboot"
        )
    has = f"{e.cuda[0]}.{e.cuda[1]}"
    detail = f"{names}, driver {e.driver}, runs CUDA up to {has}"
    if e.cuda < CUDA_NEEDED:
        need = ".".join(map(str, CUDA_NEEDED))
        return Check(
            "driver",
            Level.FAIL,
            f"{detail}; the image needs {need}",
            f"update the driver to one for CUDA {need}",
        )
    if e.machine is None:
        return Check(
            "driver", Level.WARN, f"{detail}; no machine class describes it", "choose one with --machine"
        )
    return Check("driver", Level.PASS, f"{detail} (class {e.machine})")


def _combination(e: Evidence) -> Check | None:
    if e.driver is None:
        return None
    for kernel, driver, what, source in e.known_bad:
        if re.fullmatch(kernel, e.host.kernel) and re.fullmatch(driver, e.driver):
            text = f"kernel {e.host.kernel} with driver {e.driver}: {what} ({source})"
            return Check("kernel and driver", Level.FAIL, text, "change one of the two")
    return Check(
        "kernel and driver", Level.PASS, f"kernel {e.host.kernel}, driver {e.driver}: nothing bad on record"
    )


def _gpu_users(e: Evidence) -> Check | None:
    if not e.gpu_names:
        return None
    if e.gpu_processes:
        text = f"{len(e.gpu_processes)} other programs on the GPU: {', '.join(e.gpu_processes[:4])}"
        return Check(
            "GPU users", Level.WARN, text, "stop them; the plan counts only what is free at the start"
        )
    return Check("GPU users", Level.PASS, "nobody else on the GPU")


def _cpu(e: Evidence) -> Check | None:
    if e.arch not in ("x86_64", "amd64"):
        return None
    flags = e.host.cpu_flags
    if not flags:
        return Check("CPU", Level.WARN, "the CPU's flags cannot be read", "look into /proc/cpuinfo")
    missing = [f for f in ("avx", "avx2") if f not in flags]
    if missing:
        text = f"the CPU lacks {', '.join(missing)}: libraries die with an illegal instruction"
        return Check(
            "CPU", Level.FAIL, text, "pass the host's CPU through to the virtual machine, or use another"
        )
    return Check("CPU", Level.PASS, "AVX and AVX2")


def _docker(e: Evidence) -> Check | None:
    d = e.docker
    if d is None:
        return None
    if not d.installed:
        return Check(
            "docker", Level.WARN, "no docker command: `serve` works, `run` does not", "install Docker Engine"
        )
    if "permission denied" in d.error.lower():
        return Check("docker", Level.FAIL, d.error, "sudo usermod -aG docker $USER, then log in again")
    if d.error:
        return Check("docker", Level.FAIL, d.error, "sudo systemctl start docker")
    return Check("docker", Level.PASS, f"version {d.version}")


def _toolkit(e: Evidence) -> Check | None:
    if not e.gpu_names or e.docker is None or not e.docker.installed or e.docker.error:
        return None
    if "nvidia" in e.docker.runtimes or e.docker.cdi:
        return Check("container toolkit", Level.PASS, "Docker can hand out the GPU")
    mend = (
        "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart docker"
    )
    return Check("container toolkit", Level.FAIL, "Docker has no nvidia runtime: `--gpus` fails", mend)


def _earlyoom(e: Evidence) -> Check | None:
    if e.host.earlyoom is None or e.host.memory is None:
        return None
    kills_at = e.host.earlyoom.floor_bytes(e.host.memory.total)
    floor = Limits.default(e.host.memory.total).floor
    text = f"it kills below {gib(kills_at)} available; the guard stops the server in order below {gib(floor)}"
    if kills_at >= floor:
        percent = max(1, int(floor / e.host.memory.total * 100) - 1)
        return Check(
            "earlyoom",
            Level.WARN,
            text,
            f"lower it below the floor (-m {percent}), so that the guard comes first",
        )
    return Check("earlyoom", Level.PASS, text)


def _oomd(e: Evidence) -> Check | None:
    names = [p.name for p in e.host.killers if p.name != "earlyoom"]
    if not names:
        return None
    text = f"{', '.join(names)} runs and kills by pressure, without a word in the engine's log"
    if o := e.host.oomd:
        text += (
            f": units it watches above {o.pressure_percent:g} % pressure for {o.pressure_seconds:g} s, "
            f"or with {o.swap_percent:g} % of memory and swap used"
        )
    return Check(
        "other killers", Level.WARN, text, "if a server ends with SIGKILL, look into its journal first"
    )


def _swap(e: Evidence) -> Check | None:
    m = e.host.memory
    if m is None:
        return None
    if m.swap_total == 0:
        return Check("swap", Level.PASS, "none")
    text = f"{gib(m.swap_used)} of {gib(m.swap_total)} in use"
    if m.swap_used > GIB:
        return Check("swap", Level.WARN, text, "sudo swapoff -a && sudo swapon -a once memory is free")
    if _unified(e):
        return Check(
            "swap", Level.WARN, f"{text}; a unified machine that swaps stalls as a whole", "sudo swapoff -a"
        )
    return Check("swap", Level.PASS, text)


def _shm(e: Evidence) -> Check | None:
    total, used = e.host.shm_total, e.host.shm_used
    if total is None or used is None:
        return None
    if total - used < MIN_SHM:
        text = f"{(total - used) >> 20} MiB of /dev/shm free: a full one ends the engine with a bus error"
        return Check(
            "shared memory", Level.FAIL, text, "give the container --shm-size 512m, or clear /dev/shm"
        )
    if _unified(e) and used > GIB:
        return Check(
            "shared memory",
            Level.WARN,
            f"{gib(used)} of /dev/shm in use is taken from the model",
            "ls /dev/shm",
        )
    return Check("shared memory", Level.PASS, f"{gib(total - used)} of /dev/shm free")


def _desktop(e: Evidence) -> Check | None:
    if not e.host.desktop or not _unified(e):
        return None
    names = ", ".join(sorted({p.name for p in e.host.desktop}))
    mend = "sudo systemctl isolate multi-user.target (set-default to keep it)"
    return Check("desktop", Level.WARN, f"{names} shares the model's memory", mend)


def _min_free(e: Evidence) -> Check | None:
    if e.host.min_free is None or e.host.memory is None:
        return None
    floor = Limits.default(e.host.memory.total).floor
    if e.host.min_free > floor // 2:
        text = f"vm.min_free_kbytes holds {gib(e.host.min_free)}, more than half of the guard's floor"
        return Check(
            "min_free", Level.WARN, text, "sysctl vm.min_free_kbytes back to the distribution's value"
        )
    return Check("min_free", Level.PASS, f"{e.host.min_free >> 20} MiB")


def _disk(e: Evidence) -> Check | None:
    if e.disk_free is None:
        return None
    text = f"{gib(e.disk_free)} free for checkpoints in {e.disk_place}"
    if e.disk_free < MIN_DISK:
        return Check(
            "disk", Level.WARN, text, f"a target with its draft takes about {gib(MIN_DISK)}; set HF_HUB_CACHE"
        )
    return Check("disk", Level.PASS, text)


def _hub(e: Evidence) -> Check:
    if not e.hub_asked:
        return Check(
            "hub", Level.WARN, "HF_HUB_OFFLINE is set: not asked", "unset it to pull; serving needs no hub"
        )
    if e.hub is not None:
        return Check("hub", Level.WARN, e.hub, "only `pull` needs it: check proxy, DNS, HF_ENDPOINT")
    return Check("hub", Level.PASS, "it answers")


def _clock(e: Evidence) -> Check | None:
    if e.clock_off_s is None:
        return None
    text = f"{abs(e.clock_off_s):.0f} s {'ahead of' if e.clock_off_s > 0 else 'behind'} the hub's"
    if abs(e.clock_off_s) > CLOCK_S:
        return Check("clock", Level.FAIL, text, "sudo timedatectl set-ntp true")
    return Check("clock", Level.PASS, text)
