"""Build the listed modules with the engine's own generators, without a GPU. Imports torch, FlashInfer and SGLang."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import inventory
import store
from kernels import Kernels, Module

Say = Callable[[str], None]


def value(v: Any) -> Any:
    """A TOML value as the generator wants it: `torch.bfloat16` as the dtype, lists as they are."""
    if isinstance(v, str) and v.startswith("torch."):
        return getattr(importlib.import_module("torch"), v.removeprefix("torch."))
    if isinstance(v, (list, tuple)):
        return [value(x) for x in v]
    return v


def pretend(capability: tuple[int, int]) -> None:
    """Tell torch that a device of this capability is there; generators and factories ask it."""
    import torch

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_a, **_k: capability
    cuda.get_device_name = lambda *_a, **_k: "none (build)"
    cuda.get_device_properties = lambda *_a, **_k: types.SimpleNamespace(
        name="none", major=capability[0], minor=capability[1], multi_processor_count=48, warp_size=32,
        total_memory=128 << 30, shared_memory_per_block_optin=101376, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1536, L2_cache_size=24 << 20, is_integrated=0, gcnArchName="",
    )  # fmt: skip


def banner(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def toolchain() -> dict[str, str]:
    """What besides the sources decides an object: compilers and packages."""
    nvcc = str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc")
    names = ("flashinfer-python", "apache-tvm-ffi", "torch", "sglang")
    versions = {}
    for n in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[n] = importlib.metadata.version(n)
    return {
        "nvcc": banner(nvcc).strip().splitlines()[-1],
        "cxx": banner(os.environ.get("CXX", "c++")).splitlines()[0],
        "machine": os.environ.get("PREBUILD_MACHINE", platform.machine()),
        **versions,
    }


def cpu_seconds() -> float:
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


class Builder:
    """Builds the modules of one architecture into `work` and keeps finished ones there.

    FlashInfer objects go to the store by content key; SGLang's cache is content-addressed by itself.
    """

    def __init__(self, kernels: Kernels, arch: str, work: Path, cuobjdump: str, say: Say) -> None:
        self.kernels, self.arch, self.work, self.say = kernels, arch, work, say
        self.cuobjdump = cuobjdump
        self.store = store.Store(work / "flashinfer")
        self.jit = work / "jit"
        # Both read these when they are imported.
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = arch
        os.environ["FLASHINFER_WORKSPACE_BASE"] = str(work / "ninja" / arch)
        os.environ["SGLANG_JIT_CACHE_DIR"] = str(self.jit)
        os.environ.pop("FLASHINFER_DISABLE_JIT", None)
        pretend(kernels.arch[arch].capability)
        self.tools = toolchain()

    def row(self, m: Module, t0: float, c0: float, **more: Any) -> dict[str, Any]:
        spent = {"wall_s": round(time.monotonic() - t0, 1), "cpu_s": round(cpu_seconds() - c0, 1)}
        return {"kind": m.kind, "name": m.name, "arch": self.arch, **spent, **more}

    def flashinfer(self, m: Module) -> dict[str, Any]:
        """Raises on a failed compile, a name other than the listed one, or missing machine code."""
        module, _, function = m.call.partition(":")
        t0, c0 = time.monotonic(), cpu_seconds()
        spec = getattr(importlib.import_module(module), function)(
            *value(list(m.args)), **{k: value(v) for k, v in m.kwargs.items()}
        )
        if spec.name != m.name:
            raise ValueError(
                f"the generator makes {spec.name}, the list says {m.name}: the engine would not find it"
            )
        flags = [spec.extra_cflags, spec.extra_cuda_cflags, spec.extra_ldflags]
        key = store.source_key(spec.sources, self.arch, m.name, flags, self.tools)
        if kept := self.store.find(m.name, key):
            return {**kept, "kept": True}
        free = store.available(Path("/proc/meminfo").read_text())
        jobs = store.jobs(free, m.gib, os.cpu_count() or 1)
        os.environ["MAX_JOBS"] = str(jobs)
        spec.build(verbose=False)
        found = inventory.of(spec.jit_library_path, self.cuobjdump)
        inventory.check(m.name, found, self.kernels.accepts(m, self.arch))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        row = self.row(m, t0, c0, sources=len(spec.sources), jobs=jobs, peak_mib_so_far=peak, cubins=found)
        row = self.store.add(m.name, key, spec.jit_library_path, row)
        shutil.rmtree(spec.build_dir, ignore_errors=True)  # its objects are as large again
        return {**row, "kept": False}

    def sglang(self, m: Module) -> dict[str, Any]:
        """Build through `load_jit`, as the engine will ask; a cached build that still applies is taken."""
        module, _, function = m.call.partition(":")
        f = getattr(importlib.import_module(module), function)
        t0, c0 = time.monotonic(), cpu_seconds()
        with leaves(self.jit) as fresh:
            getattr(f, "__wrapped__", f)(*value(list(m.args)), **{k: value(v) for k, v in m.kwargs.items()})
        return self.row(m, t0, c0, kept=not fresh)


@contextlib.contextmanager
def leaves(jit: Path) -> Iterator[list[str]]:
    """Yields a list that afterwards names the objects which this thread's call has added (by name)."""
    before = {str(p) for p in jit.rglob("*.so")}
    fresh: list[str] = []
    yield fresh
    fresh.extend(sorted({str(p) for p in jit.rglob("*.so")} - before))


def run(builder: Builder, modules: list[Module], workers: int, budget_s: float) -> list[dict[str, Any]]:
    """Build all, FlashInfer's one after another (each compiles many files), SGLang's `workers` at a time.

    A module that fails is a row with `error`; one not begun within `budget_s` a row with `left`.
    """
    end = time.monotonic() + budget_s
    lock = threading.Lock()
    rows: list[dict[str, Any]] = []

    def one(m: Module) -> None:
        base = {"kind": m.kind, "name": m.name, "arch": builder.arch}
        if time.monotonic() > end:
            row = {**base, "left": "the time given was up"}
        else:
            try:
                row = getattr(builder, m.kind)(m)
            except Exception as e:
                text = str(e).strip().splitlines() or [type(e).__name__]
                errors = [line for line in text if "error" in line.lower()] or text
                row = {**base, "error": f"{type(e).__name__}: {errors[-1][:400]}"}
                (builder.work / "failed").mkdir(parents=True, exist_ok=True)
                (builder.work / "failed" / f"{m.name[:80]}.log").write_text(str(e))
        with lock:
            rows.append(row)
            builder.say(line(row))

    for m in modules:
        if m.kind == "flashinfer":
            one(m)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        list(pool.map(one, [m for m in modules if m.kind == "sglang"]))
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table on standard output."""
    head = f"{row['arch']:6} {row['kind']:10} {row['name'][:70]:70}"
    if "error" in row or "left" in row:
        return f"{head} {'FAILED' if 'error' in row else 'LEFT'}: {row.get('error') or row['left']}"
    size = f"{row['bytes'] / 1e6:6.2f} MB" if "bytes" in row else ""
    cubins = " ".join(f"{a}x{n}" for a, n in row.get("cubins", {}).items())
    return f"{head} {row['wall_s']:7.1f} s {row['cpu_s']:7.1f} cpu s {size} {cubins}{' (kept)' if row['kept'] else ''}"


def site() -> Path:
    """The FlashInfer package's folder."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.origin:
        sys.exit("prebuild: flashinfer is not installed here")
    return Path(spec.origin).parent
