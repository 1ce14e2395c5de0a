"""`python -m smoke several --out DIR PRESET ... [-- OPTIONS]`: smoke several presets of one machine side by side.

For a machine that is ours for minutes only: each preset is a run of its own with the same time limit, and each leaves its
report in DIR/PRESET, whether it passed, failed or was cut. Speeds measured in company are not those of a machine of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from smoke import errors

ROOT = Path(__file__).resolve().parents[1]
# SGLang takes its distributed port from the 1000 above its own, so two servers need more than that between them.
PORT_STEP = 1500
# SGLang puts Triton's cache and others into its own folder unless they are told another; its own kernels lie beside them.
COPIED = (
    ("SGLANG_CACHE_DIR", ".cache/sglang"),
    ("SGLANG_JIT_CACHE_DIR", ".cache/sglang/jit"),
    ("TRITON_CACHE_DIR", None),
)
GRACE_S = 40.0  # for stopping the engine and drawing the plots


@dataclass
class Run:
    """One preset's process."""

    preset: str
    folder: Path
    proc: subprocess.Popen[bytes]


def parser() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser(
        prog="sparkserve smoke several",
        description=__doc__,
        epilog="Everything after -- goes to each run: `-- --machine h200 --profile full`.",
    )
    ap.add_argument("presets", nargs="+", metavar="PRESET")
    ap.add_argument("--out", type=Path, required=True, metavar="DIR")
    ap.add_argument(
        "--time-limit", type=float, default=540.0, metavar="SECONDS", help="of each run; default 540"
    )
    ap.add_argument(
        "--base-port", type=int, default=20_000, help=f"the first engine's; then every {PORT_STEP}"
    )
    return ap


def main(argv: list[str]) -> int:
    """0 when every preset is good, 1 when one is not, 2 usage, 130 interrupted."""
    cut = argv.index("--") if "--" in argv else len(argv)
    a, rest = parser().parse_args(argv[:cut]), argv[cut + 1 :]
    if len(set(a.presets)) < len(a.presets):
        print("smoke: a preset is named twice. Name each once", file=sys.stderr)
        return errors.USAGE
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="sparkserve-several-", ignore_cleanup_errors=True) as scratch:
        try:
            for i, preset in enumerate(a.presets):
                caches = own_caches(Path(scratch) / preset)
                runs.append(_start(preset, a, a.base_port + i * PORT_STEP, caches, rest))
            _wait(runs, a.time_limit + GRACE_S)
        except KeyboardInterrupt:
            return errors.INTERRUPTED
        finally:
            _end(runs)
    for run in runs:
        print(f"{run.preset}: exit {run.proc.returncode}, {_verdict(run.folder)}", flush=True)
    return errors.OK if all(r.proc.returncode == 0 for r in runs) else errors.NOT_GOOD


def own_caches(folder: Path) -> dict[str, str]:
    """Kernel caches of one run's own, begun with what this machine's hold: environment variable to folder.

    In a common one a neighbour's kernel would look as if the second boot had compiled it.
    """
    found = {}
    for variable, default in COPIED:
        if not os.environ.get(variable) and default is None:
            continue
        own = folder / variable.lower()
        common = Path(os.environ.get(variable) or Path.home() / str(default))
        with contextlib.suppress(OSError, shutil.Error):  # a cache is only ever a gain
            shutil.copytree(common, own)
        found[variable] = str(own)
    return found


def _start(preset: str, a: argparse.Namespace, port: int, caches: dict[str, str], rest: list[str]) -> Run:
    folder = a.out / preset
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "smoke", preset, "--time-limit", f"{a.time_limit:g}", "--port", str(port)]
    argv += ["--report", str(folder), "--junit", str(folder / "junit.xml"), *rest]
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    with (folder / "console.txt").open("wb") as out:
        proc = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, **caches},
            start_new_session=True,
        )
    return Run(preset, folder, proc)


def _wait(runs: list[Run], seconds: float) -> None:
    """Until all have ended; those that overstay are told to stop, which still leaves a report, then killed."""
    end = time.monotonic() + seconds
    for run in runs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.proc.wait(max(0.0, end - time.monotonic()))
    _end(runs)


def _end(runs: list[Run]) -> None:
    for sig, patience in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        late = [r for r in runs if r.proc.poll() is None]
        for run in late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.proc.pid, sig)
        end = time.monotonic() + patience
        for run in late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.proc.wait(max(0.0, end - time.monotonic()))


def _verdict(folder: Path) -> str:
    try:
        return str(json.loads((folder / "report.json").read_text(encoding="utf-8"))["headline"])
    except (OSError, ValueError, KeyError):
        return f"no report; see {folder / 'console.txt'}"
