"""Cold boot to the first token: nothing prebuilt against prebuilt, each with empty caches of its own, in one run.

    python bench/cold_boot.py prepare --machine h200 --arch 9.0a --work DIR PRESET...   # record, then prebuild
    python bench/cold_boot.py measure --machine h200 --work DIR --json FILE PRESET...   # the table

`prepare` boots the presets side by side with the recorder on, makes a list of what they asked for and builds with
docker/prebuild what FlashInfer's data/aot does not hold. `measure` boots every preset in three ways:
`prebuilt` (the set, other caches empty), `kept` (the caches which that boot left; SPARK_NO_COMPILE=1) and `cold` (no data/aot,
all caches empty). A boot past its deadline counts as "> N s". Compilers are counted by looking at the process tree many times a
second, and by the objects that appear in the caches, which misses none. Triton's ptxas, started by Python, is told from nvcc's.
Cold boots run side by side (`--one-by-one` for one after another); the record says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PREBUILD = ROOT / "docker" / "prebuild"
COMPILERS = {
    "nvcc",
    "cicc",
    "ptxas",
    "cudafe++",
    "fatbinary",
    "cc1plus",
    "cc1",
    "ninja",
    "nvlink",
    "clang",
    "clang++",
}
PERIOD_S = 0.05
CACHES = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "jit",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "nv",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "TILELANG_CACHE_DIR": "tilelang",
    "XDG_CACHE_HOME": "xdg",
}


# ---- processes -----------------------------------------------------------------------------------------------------


def table() -> dict[int, tuple[int, str]]:
    """pid -> (parent, name) of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(errors="replace")
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        found[int(stat.parent.name)] = (int(rest.split()[1]), name)
    return found


def compilers(processes: Mapping[int, tuple[int, str]], root: int) -> dict[int, tuple[str, str]]:
    """Compiler processes below `root`: pid -> (name, who started it: `nvcc`, `triton` or `other`)."""
    found = {}
    for pid, (_, name) in processes.items():
        if name not in COMPILERS:
            continue
        chain, up = [], pid
        while up in processes and up != root:
            chain.append(processes[up][1])
            up = processes[up][0]
        if up != root:
            continue
        if {"nvcc", "ninja"} & set(chain):
            family = "nvcc"
        elif name == "ptxas":
            family = "triton"
        else:
            family = "other"
        found[pid] = (name, family)
    return found


class Watch(threading.Thread):
    """Looks at the tree below a process until told to stop."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.seen, self.over = root, dict[int, tuple[str, str]](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(PERIOD_S):
            self.seen.update(compilers(table(), self.root))

    def counts(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for name, family in self.seen.values():
            row = found.setdefault(family, {})
            row[name] = row.get(name, 0) + 1
        return {k: dict(sorted(v.items())) for k, v in sorted(found.items())}


# ---- a boot --------------------------------------------------------------------------------------------------------


def package() -> Path:
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or spec.origin is None:
        sys.exit("cold_boot: flashinfer is not installed here")
    return Path(spec.origin).parent


def overlay(where: Path, aot: Path | None) -> Path:
    """A folder for PYTHONPATH with FlashInfer as installed, but `data/aot` taken from `aot`, or none. Files are hard links."""
    shutil.rmtree(where, ignore_errors=True)
    source, target = package(), where / "flashinfer"

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    skip = str(source / "data")
    shutil.copytree(
        source,
        target,
        copy_function=link,
        ignore=lambda folder, _: ["aot"] if folder == skip else [],
    )
    if aot is not None:
        shutil.copytree(aot, target / "data" / "aot")
    return where


def free_ports(n: int) -> list[int]:
    """Bases far enough apart: the engine takes more ports above the one it listens on."""
    ports, base = [], 21000
    while len(ports) < n and base < 60000:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", base)):
                ports.append(base)
        base += 1500
    return ports


def objects(folder: Path) -> list[str]:
    """Compiled objects below a cache folder, by file name."""
    return sorted(p.name for p in folder.rglob("*") if p.suffix in (".so", ".cubin", ".o") and p.is_file())


def boot(  # noqa: PLR0917  one row of the table
    preset: str,
    case: str,
    a: argparse.Namespace,
    port: int,
    caches: Path,
    path: list[Path],
    extra: Mapping[str, str],
) -> dict[str, Any]:
    """Serve once until the first token or the deadline; the row of the table. The server is stopped by its process group."""
    for name in CACHES.values():
        (caches / name).mkdir(parents=True, exist_ok=True)
    before = set(objects(caches))
    env = {**os.environ, **{k: str(caches / v) for k, v in CACHES.items()}, **extra}
    env["PYTHONPATH"] = os.pathsep.join(
        [*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    log = caches.parent / f"{preset}-{case}.log"
    argv = [
        sys.executable,
        "-m",
        "launch",
        "serve",
        preset,
        "--machine",
        a.machine,
        "--port",
        str(port),
        "--json",
    ]
    argv += ["--boot-timeout", str(a.deadline + 60), "--log-file", str(log)]
    argv += [w for s in a.set for w in ("--set", s)]
    t0 = time.monotonic()
    with (caches.parent / f"{preset}-{case}.err").open("wb") as err:
        server = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        )
    watch = Watch(server.pid)
    watch.start()
    timer = threading.Timer(a.deadline, stop, (server,))
    timer.start()
    assert server.stdout is not None
    ready = server.stdout.readline()
    seconds = time.monotonic() - t0
    timer.cancel()
    watch.over.set()
    watch.join()
    late = not ready and seconds >= a.deadline
    row: dict[str, Any] = {
        "preset": preset,
        "case": case,
        "seconds": round(seconds, 1) if ready else None,
        "shown": f"{seconds:.1f} s" if ready else f"> {a.deadline:.0f} s" if late else "did not start",
        "compilers": watch.counts(),
        "objects": [n for n in objects(caches) if n not in before][:400],
        "log": log.name,
    }
    if not ready:
        row["tail"] = tail(log, caches.parent / f"{preset}-{case}.err")
    stop(server)
    print(f"{preset:24} {case:9} {row['shown']:>14}  {row['compilers'] or 'no compiler'}", flush=True)
    return row


def tail(*files: Path) -> list[str]:
    return [line for f in files if f.exists() for line in f.read_text(errors="replace").splitlines()[-8:]]


def stop(server: subprocess.Popen[bytes]) -> None:
    """TERM to the launcher, which ends the engine; KILL to both groups when it does not."""
    if server.poll() is not None:
        return
    below = {p for p, (parent, _) in table().items() if parent == server.pid}
    server.terminate()
    try:
        server.wait(40)
    except subprocess.TimeoutExpired:
        for group in {server.pid, *below}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        server.wait()


# ---- the two commands ----------------------------------------------------------------------------------------------


def prepare(a: argparse.Namespace) -> int:
    recordings = a.work / "recorded"
    if a.adopt:  # what was compiled elsewhere is not compiled again here
        argv = [sys.executable, str(PREBUILD), "adopt", "--arch", a.arch, "--source", str(a.adopt)]
        subprocess.run([*argv, "--jit", str(a.work / "build" / "jit")], check=True)
        for preset in a.presets:
            shutil.copytree(a.work / "build" / "jit", a.work / "record" / preset / "jit", dirs_exist_ok=True)
    hook = ROOT / "launch" / "hook"

    def one(job: tuple[str, int]) -> dict[str, Any]:
        preset, port = job
        return boot(
            preset,
            "record",
            a,
            port,
            a.work / "record" / preset,
            [hook],
            {"SPARK_RECORD": str(recordings / preset)},
        )

    with ThreadPoolExecutor(len(a.presets)) as pool:
        rows = list(pool.map(one, zip(a.presets, free_ports(len(a.presets)), strict=True)))
    merged = a.work / "recorded.json"
    run = [sys.executable, str(PREBUILD)]
    folders = [str(f) for f in sorted(recordings.iterdir())]
    subprocess.run([*run, "merge", "--arch", a.arch, "--out", str(merged), *folders], check=True)
    have = {p.name for p in (package() / "data" / "aot").glob("*")}
    asked = json.loads(merged.read_text())["module"]
    missing = [m["name"] for m in asked if m["kind"] == "flashinfer" and m["name"] not in have]
    only = [w for n in missing for w in ("--only", n)]
    t0 = time.monotonic()
    build = [
        *run,
        "build",
        "--list",
        str(merged),
        "--arch",
        a.arch,
        "--work",
        str(a.work / "build"),
        "--out",
        str(a.work / "set"),
    ]
    build += ["--only", "sglang", *only, "--workers", str(a.workers), "--cuobjdump", a.cuobjdump]
    code = subprocess.run(build, check=False).returncode
    shutil.copytree(package() / "data" / "aot", a.work / "set" / "aot", dirs_exist_ok=True)
    note = {
        "boots": rows,
        "prebuild_seconds": round(time.monotonic() - t0, 1),
        "built_here": missing,
        "exit": code,
    }
    save(a.work / "prepare.json", note)
    print(
        f"prebuild: {note['prebuild_seconds']} s, FlashInfer modules built here: {missing or 'none'}",
        flush=True,
    )
    return code


def measure(a: argparse.Namespace) -> int:
    made = a.work / "set"
    with_set, without = overlay(a.work / "with", made / "aot"), overlay(a.work / "without", None)
    shutil.rmtree(a.work / "boots", ignore_errors=True)
    rows: list[dict[str, Any]] = []
    ports = free_ports(len(a.presets) * 2)
    result = {
        "schema": 1,
        "hardware": hardware(),
        "deadline_s": a.deadline,
        "sample_period_s": PERIOD_S,
        "rows": rows,
    }
    result["cold_side_by_side"] = len(a.presets) if not a.one_by_one else 1
    if (a.work / "prepare.json").exists():
        result["prepare"] = json.loads((a.work / "prepare.json").read_text())

    def one(preset: str, case: str, port: int) -> None:
        caches = a.work / "boots" / f"{preset}-{'cold' if case == 'cold' else 'set'}"
        extra = {}
        if case == "prebuilt" and (made / "jit").is_dir():
            shutil.copytree(made / "jit", caches / "jit")
        if case == "kept":
            extra = {"SPARK_NO_COMPILE": "1"}
        rows.append(boot(preset, case, a, port, caches, [without if case == "cold" else with_set], extra))
        save(a.json, {**result, "ratios": ratios(rows)})

    for preset, port in zip(a.presets, ports, strict=False):
        for case in ("prebuilt", "kept"):
            if case in a.cases:
                one(preset, case, port)
    if "cold" in a.cases:
        with ThreadPoolExecutor(1 if a.one_by_one else len(a.presets)) as pool:
            list(pool.map(one, a.presets, ["cold"] * len(a.presets), ports[len(a.presets) :]))
    print(json.dumps(ratios(rows), indent=1))
    return 0 if all(r["shown"] != "did not start" for r in rows) else 1


def ratios(rows: list[dict[str, Any]]) -> dict[str, str]:
    """cold : prebuilt by preset; with a cold boot past its deadline, what the ratio is at least."""
    by = {(r["preset"], r["case"]): r for r in rows}
    found = {}
    for (preset, case), r in by.items():
        cold = by.get((preset, "cold"))
        if case != "cold" and r["seconds"] and cold and cold["shown"] != "did not start":
            least = cold["seconds"] or float(cold["shown"].strip("> s"))
            found[f"{preset} cold:{case}"] = f"{'' if cold['seconds'] else '> '}{least / r['seconds']:.2f}"
    return found


def save(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_text(json.dumps(data, indent=1) + "\n")
    tmp.replace(path)


def hardware() -> dict[str, Any]:
    def said(*argv: str) -> str:
        try:
            return subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=30
            ).stdout.strip()
        except OSError:
            return ""

    versions = {}
    for name in ("sglang", "flashinfer-python", "torch", "triton"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    nvcc = said("nvcc", "--version").splitlines()
    return {
        "gpu": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "nvcc": nvcc[-1] if nvcc else "",
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="command", required=True)
    for name, f in (("prepare", prepare), ("measure", measure)):
        p = sub.add_parser(name)
        p.set_defaults(run=f)
        p.add_argument("presets", nargs="+")
        p.add_argument("--machine", required=True)
        p.add_argument("--work", type=Path, required=True)
        p.add_argument("--deadline", type=float, default=400, help="seconds a boot may take")
        p.add_argument("--set", action="append", default=[], help="KEY=VALUE for `sparkserve serve`")
        if name == "prepare":
            p.add_argument("--arch", required=True)
            p.add_argument("--adopt", type=Path, help="a folder that docker/prebuild build filled elsewhere")
            p.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
            p.add_argument("--cuobjdump", default="cuobjdump")
        else:
            p.add_argument("--json", type=Path, required=True)
            p.add_argument("--cases", default="prebuilt,kept,cold", type=lambda s: s.split(","))
            p.add_argument("--one-by-one", action="store_true")
    a = ap.parse_args()
    a.work = a.work.resolve()
    a.work.mkdir(parents=True, exist_ok=True)
    return int(a.run(a))


if __name__ == "__main__":
    sys.exit(main())
