"""Bytes a decoding step moves and the tokens/s that bandwidth allows: `python bench/roofline.py PRESET --machine gb10-128`.

Computed, not measured: from the preset's shapes, the checkpoint's layer map and the machine's memory bandwidth. That is
`--bandwidth`, else what `sparkserve tune` measured on this very machine, else the figure with a source in
launch/models/machines.toml.
Exit codes as `sparkserve`: 2 usage, 78 when something is not known.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch.bandwidth import bandwidth
from launch.commandline import computed
from launch.errors import SparkError, UsageError
from launch.gemms import gemms_of
from launch.planfacts import plan_facts
from launch.registry import Registry
from launch.resolve import Resolved, resolve
from launch.roofline import Step, step


def text(r: Resolved, s: Step, acceptance: list[float], *, peak: float, source: str, layers: str) -> str:
    """The page for a person."""
    lines = [f"{r.slug}: one step, {s.requests} request(s), {s.context:,} tokens of context", ""]
    for name in ("target", "head", "draft", "kv", "state"):
        lines.append(f"  {name:<8} {getattr(s, name) / 1e9:8.3f} GB")
    lines += [f"  {'total':<8} {s.total / 1e9:8.3f} GB", "", f"bandwidth {peak / 1e9:.0f} GB/s: {source}"]
    lines += [f"layers: {layers}", *(f"note: {n}" for n in s.notes), "", "acceptance  ceiling tok/s"]
    lines += [f"{a:10.2f}  {s.ceiling(peak, a):13.1f}" for a in acceptance]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/roofline.py", description=__doc__.splitlines()[0])
    parser.add_argument("preset")
    parser.add_argument("--machine", help="machine class; default: the preset's")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S")
    parser.add_argument(
        "--context", type=int, default=0, help="tokens already in the KV cache of each request"
    )
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument(
        "--acceptance", type=float, nargs="+", help="tokens kept a step; default: 1 to the draft's depth"
    )
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args(argv)
    try:
        loaded = Registry().load(o.preset)
        r = computed(resolve(loaded, o.machine or loaded.default_machine))
        depth = loaded.draft.tokens if loaded.draft else 1
        acceptance = o.acceptance or sorted({float(a) for a in (1, 2, 2.5, 3, 4, 6, 8, 12, 16) if a <= depth})
        if (
            o.context < 0
            or o.requests < 1
            or min(acceptance) <= 0
            or (o.bandwidth is not None and o.bandwidth <= 0)
        ):
            raise UsageError("--context, --requests, --acceptance and --bandwidth must be positive")
        if max(acceptance) > depth:
            raise UsageError(
                f"acceptance {max(acceptance):g} is more than the {depth} tokens {loaded.name} verifies a step"
            )
        gemms, layers = gemms_of(r)
        s = step(r, plan_facts(r), gemms, context=o.context, requests=o.requests)
        peak, source = bandwidth(r, o.bandwidth)
    except SparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if o.json:
        ceilings = {f"{a:g}": round(s.ceiling(peak, a), 2) for a in acceptance}
        data = {"preset": loaded.name, "machine": r.machine.name, "bytes": {**asdict(s), "total": s.total},
                "bandwidth": peak, "bandwidth_source": source, "layers": layers, "ceiling": ceilings}  # fmt: skip
        print(json.dumps(data, indent=2))
    else:
        print(text(r, s, acceptance, peak=peak, source=source, layers=layers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
