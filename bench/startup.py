"""Start-up, side by side: what the launcher adds, and how long a warm `make demo` takes to its answer.

    python bench/startup.py [--repeat N] [--no-demo] [--json FILE]

Launcher: `sparkserve serve --print` against `python -c pass`, alternating in one run, medians and their ratio; the import
trace of one run shows whether torch or sglang was loaded. Demo: seconds from the command to the engine's first token (its
ready line is a real generation) and to the printed answer, in a warm environment (fixtures built, byte-code written).
Figures belong to the machine they were taken on, which is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRINT = [sys.executable, "-m", "launch", "serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print"]
PASS = [sys.executable, "-c", "pass"]
NEVER = {"torch", "sglang", "numpy", "transformers"}


def seconds(argv: list[str]) -> float:
    t0 = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - t0


def imported(argv: list[str]) -> set[str]:
    """Top-level modules loaded by a Python command, from its import trace."""
    traced = [argv[0], "-X", "importtime", *argv[1:]]
    trace = subprocess.run(traced, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    names = (
        line.rsplit("|", 1)[-1].strip() for line in trace.splitlines() if line.startswith("import time:")
    )
    return {n.split(".")[0] for n in names}


def launcher(repeat: int) -> dict[str, object]:
    rounds = [(seconds(PRINT), seconds(PASS)) for _ in range(repeat + 1)][1:]  # the first warms the caches
    mine, bare = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    return {
        "serve_print_s": round(mine, 4),
        "python_pass_s": round(bare, 4),
        "ratio": round(mine / bare, 2),
        "repeats": repeat,
        "heavy_imports": sorted(imported(PRINT) & NEVER),
    }


def demo() -> dict[str, object]:
    """Seconds from the start of a warm `make demo` to its answer and to its end."""
    t0 = time.perf_counter()
    marks: dict[str, float] = {}
    with subprocess.Popen(
        ["make", "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        for line in p.stdout or ():
            for mark, sign in (("first_token_s", "ready after"), ("answer_s", "Answer:")):
                if sign in line:
                    marks.setdefault(mark, round(time.perf_counter() - t0, 1))
    return {**marks, "end_s": round(time.perf_counter() - t0, 1), "exit": p.returncode}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--no-demo", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    result: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_before": round(os.getloadavg()[0], 2),
        "launcher": launcher(args.repeat),
    }
    if not args.no_demo:
        result["demo"] = demo()
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
