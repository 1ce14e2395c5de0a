"""What the candidate kernel takes of an SM120/SM121, compiled without a GPU: `python bench/selector_resources.py --out FILE`.

Registers and stack (spills) per thread as cuobjdump reads them from the cubin, dynamic shared memory as
Triton asks for it. Compiled, not run. Exit 1 if a kernel spills or needs more shared memory than a block may have.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import selector
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_LIMIT = 101376  # bytes a block may have on SM120 and SM121
DENSE, FP8, NVFP4 = 0, 1, 2
WEIGHT = {DENSE: "*bf16", FP8: "*fp8e4nv", NVFP4: "*i16"}
# kind, swizzled, block_n, block_r, block_k, warps, stages: the engine's defaults and what a tuning run would try
CASES = [
    *(
        (NVFP4, s, 64, r, k, 4, 3)
        for s in (False, True)
        for r, k in ((8, 256), (16, 256), (32, 128), (64, 128))
    ),
    *((DENSE, False, 64, r, k, 4, 3) for r, k in ((16, 256), (16, 128), (64, 128), (64, 64))),
    *((FP8, False, 64, r, k, 4, 3) for r, k in ((16, 256), (16, 128), (64, 128), (64, 64))),
]


def compiled(kernel: ModuleType, arch: int, case: tuple[Any, ...], width: int) -> dict[str, Any]:
    kind, swizzled, block_n, block_r, block_k, warps, stages = case
    constants = {
        "WIDTH": width,
        "KIND": kind,
        "SWIZZLE": swizzled,
        "ROW_SCALE": False,
        "HAS_SCALE": kind != DENSE,
        "ROUND": 1,
        "TOP_K": 16,
        "BLOCK_N": block_n,
        "BLOCK_R": block_r,
        "BLOCK_K": block_k,
        "NATIVE": True,
        "STAGES": stages,
    }
    signature = {
        "x_ptr": "*fp16" if kind == NVFP4 else "*bf16",
        "factor_ptr": "*fp32" if kind == NVFP4 else "*bf16",
        "w_ptr": WEIGHT[kind],
        "s_ptr": "*u8",
        "scale_ptr": "*fp32",
        "out_ptr": "*i32",
        "rows": "i32",
        "num_org": "i32",
        "programs": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    names = list(signature)
    source = ASTSource(
        fn=kernel._project_kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")},
    )
    start = time.monotonic()
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    seconds = time.monotonic() - start
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary.asm["cubin"])
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout

    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {usage[:200]!r}")
    target = re.search(r"sm_1\d\d[af]?", binary.asm["ptx"])
    return {
        "target": target.group(0) if target else None,
        "cubin_bytes": len(binary.asm["cubin"]),
        "head": ("dense", "fp8", "nvfp4")[kind],
        "layout": "swizzled" if swizzled else "linear",
        "block_n": block_n,
        "block_r": block_r,
        "block_k": block_k,
        "warps": warps,
        "stages": stages,
        "registers": int(found.group(1)),
        "spill_bytes": int(found.group(2)),
        "shared_bytes": binary.metadata.shared,
        "compile_s": round(seconds, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--width", type=int, default=5120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kernel = selector.load_kernel(Path(folder))
        rows = [compiled(kernel, arch, case, args.width) for arch in (120, 121) for case in CASES]
    bad = [r for r in rows if r["spill_bytes"] or r["shared_bytes"] > SHARED_LIMIT]
    report = {
        "about": "compiled, not run",
        "triton": triton.__version__,
        "shared_limit_bytes": SHARED_LIMIT,
        "width": args.width,
        "kernels": rows,
        "over": len(bad),
    }
    partial = Path(args.out).with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(args.out)
    for r in rows:
        print(
            f"{r['target']:8} {r['head']:6} {r['layout']:9} {r['block_n']:4}{r['block_r']:4}{r['block_k']:5}"
            f"  {r['registers']:4} registers {r['spill_bytes']:4} B spilled {r['shared_bytes']:7} B shared"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
