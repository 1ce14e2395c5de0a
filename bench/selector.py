"""DFlash2's candidates on one GPU: the engine's projection and top-k against one kernel without logits.

    python bench/selector.py --out selector.json [--time-limit 240] [--top-k engine|torch]

Per head and number of rows: milliseconds (CUDA graph replay, median), the ratio engine / kernel, and the
head's bytes over the kernel's time as a share of the copy bandwidth measured first. Two copies of a head
take turns, each larger than any L2. Every configuration is first held to float64 logits; one that is wrong
cannot win. `--top-k torch` stands in for the radix top-k where that is not built, and the table says so.
The engine's NVFP4 path is what this GPU has: Marlin below SM100. The kernel is taken from the engine if it
has it, else out of our patch file. The file has `entries` as the engine's table wants them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import selector_heads as made
import torch

ROOT = Path(__file__).resolve().parents[1]
KERNEL = "sglang/kernels/ops/speculative/head_candidates.py"
TOP_K = 16
ROWS = (8, 16, 32, 64, 128, 256, 512)


def load_kernel(folder: Path) -> ModuleType:
    """The engine's module, or the file our patch adds, written below `folder`."""
    if importlib.util.find_spec("sglang"):
        root = Path(str(importlib.util.find_spec("sglang").origin)).parents[1]  # type: ignore[union-attr]
        path = root / KERNEL
        if path.exists():
            return made.module_from(path)
    patch = next(ROOT.glob("patches/*-p28-*.patch"))
    lines = patch.read_text().split(f"+++ b/{KERNEL}\n", 1)[1].splitlines()
    body = []
    for line in lines[1:]:
        if line.startswith(("diff ", "--- ")):
            break
        if line.startswith("+"):
            body.append(line[1:])
    path = folder / "head_candidates.py"
    path.write_text("\n".join(body) + "\n")
    return made.module_from(path)


def sizes(kind: str, rows: int) -> list[dict[str, int]]:
    """The configurations worth a try: (block_n, block_r, block_k, warps, stages, programs)."""
    names = ("block_n", "block_r", "block_k", "warps", "stages", "programs")
    return [
        dict(zip(names, c, strict=True)) for c in made.CONFIGS["nvfp4" if "nvfp4" in kind else kind](rows)
    ]


def replay_ms(functions: list[Callable[[], Any]], repeats: int = 9) -> float:
    """Median milliseconds of one function; a graph holds all of them once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for f in functions:
            f()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for f in functions:
            f()
    times = []
    for _ in range(repeats + 2):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / len(functions))
    return statistics.median(times[2:])


def bandwidths() -> dict[str, float]:
    """GB/s over 4 GiB buffers: copied (read plus written; the better of a kernel and a memcpy), and read alone."""
    a = torch.zeros(1 << 30, dtype=torch.float32, device="cuda")
    b = torch.zeros_like(a)
    for _ in range(10):
        torch.mul(a, 1.0, out=b)
    size = a.numel() * a.element_size()
    kernel = replay_ms([lambda: torch.mul(a, 1.0, out=b), lambda: torch.mul(b, 1.0, out=a)] * 3)
    memcpy = replay_ms([lambda: b.copy_(a), lambda: a.copy_(b)] * 3)
    read = replay_ms([lambda: torch.amax(a), lambda: torch.amax(b)] * 3)
    return {
        "copy_gb_s": 2 * size / min(kernel, memcpy) / 1e6,
        "copy_kernel_gb_s": 2 * size / kernel / 1e6,
        "copy_memcpy_gb_s": 2 * size / memcpy / 1e6,
        "read_gb_s": size / read / 1e6,
    }


def engine_top_k(which: str) -> Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]:
    if which == "torch":
        return lambda scores, k: tuple(torch.topk(scores, k, dim=-1))  # type: ignore[return-value]
    from flashinfer import top_k

    return lambda scores, k: top_k(scores, k, sorted=True, deterministic=True)


def engine_projection(kind: str, head: Any, rows: int) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
    """(name, hidden -> logits) the way the engine's `_project_candidate_logits` does it on this GPU."""
    if kind == "dense":
        return "dense GEMM", lambda x: torch.matmul(x, head.weight[:rows].T)
    if kind == "fp8":
        from sglang.srt.layers.quantization.fp8_utils import apply_fp8_linear

        weight, one = head.weight.t(), torch.ones((), device="cuda")
        return "W8A8 GEMM", lambda x: apply_fp8_linear(
            input=x, weight=weight, weight_scale=head.scale, input_scale=one
        )[:, :rows].contiguous()
    from sglang.srt.layers.quantization import marlin_utils_fp4 as marlin

    layer = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = head.weight.shape[0], head.width
    layer.params_dtype = torch.bfloat16
    layer.weight = torch.nn.Parameter(head.weight.clone(), requires_grad=False)
    scales = head.block_scale.view(torch.float8_e4m3fn)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    layer.weight_global_scale = torch.nn.Parameter(head.scale.reshape(()).clone(), requires_grad=False)
    marlin.prepare_nvfp4_layer_for_marlin(layer)

    def project(x: torch.Tensor) -> torch.Tensor:
        logits = marlin.apply_fp4_marlin_linear(
            input=x,
            weight=layer.weight,
            weight_scale=layer.weight_scale,
            weight_global_scale=layer.weight_global_scale,
            workspace=layer.workspace,
            size_n=layer.output_size_per_partition,
            size_k=layer.input_size_per_partition,
        )
        logits[:, rows:] = float("-inf")
        return logits

    return "Marlin W4A16", project


class Bench:
    def __init__(self, args: argparse.Namespace, kernel: ModuleType) -> None:
        self.args, self.kernel, self.start = args, kernel, time.monotonic()
        self.count = args.vocabulary - args.padding
        self.report: dict[str, Any] = {
            "device": torch.cuda.get_device_name(),
            "capability": list(torch.cuda.get_device_capability()),
            "torch": torch.__version__,
            "triton": kernel.triton.__version__,
            "top_k": args.top_k,
            "vocabulary": args.vocabulary,
            "counted_rows": self.count,
            "width": args.width,
            "k": TOP_K,
            "results": [],
            "entries": [],
            "errors": [],
        }

    def left(self) -> float:
        return float(self.args.time_limit) - (time.monotonic() - self.start)

    def save(self) -> None:
        partial = Path(self.args.out).with_suffix(".partial")
        partial.write_text(json.dumps(self.report, indent=1) + "\n")
        partial.replace(self.args.out)

    def note(self, what: str, error: Exception) -> None:
        """A path that does not run is a finding, not the end of the run."""
        self.report["errors"].append({"what": what, "error": traceback.format_exc()[-1200:]})
        print(f"{what}: {type(error).__name__}: {str(error)[:160]}", flush=True)

    def engine(self, kind: str, heads: list[Any], inputs: list[torch.Tensor]) -> tuple[str, float | None]:
        if kind == "nvfp4_swizzled":  # the same values: the path that this GPU has for them
            same = [
                r for r in self.report["results"] if r["head"] == "nvfp4" and r["rows"] == inputs[0].shape[0]
            ]
            return (same[0]["engine"], same[0]["engine_ms"]) if same else ("not run", None)
        try:
            top_k = engine_top_k(self.args.top_k)
            if not self.projections:
                self.projections.extend(engine_projection(kind, h, self.count) for h in heads)
            calls = [
                lambda x=x, p=p: top_k(p(x), TOP_K)
                for x, (_, p) in zip(inputs, self.projections, strict=True)
            ]
            return self.projections[0][0], replay_ms(calls)
        except Exception as error:
            self.note(f"engine path, {kind}, {inputs[0].shape[0]} rows", error)
            return "not run", None

    def one(self, kind: str, heads: list[Any], exact: Callable[[int, int], torch.Tensor], rows: int) -> None:
        gen = torch.Generator(device="cuda").manual_seed(self.args.seed + rows)
        inputs = [
            torch.randn((rows, self.args.width), generator=gen, device="cuda").bfloat16() for _ in heads
        ]
        logits = made.logits64(inputs[0][:64], exact, self.count)
        best: tuple[float, dict[str, int], dict[str, Any]] | None = None
        for size in sizes(kind, rows):
            config = self.kernel.Config(**size)
            try:
                ids, values = self.kernel.head_candidates(inputs[0], heads[0], TOP_K, config)
                found = made.check(ids[:64], values[:64], logits)
                if not made.good(found):
                    raise ArithmeticError(f"not the candidates: {found}")
                again = self.kernel.head_candidates(inputs[0], heads[0], TOP_K, config)
                if not (torch.equal(ids, again[0]) and torch.equal(values, again[1])):
                    raise ArithmeticError("two runs differ")
                ms = replay_ms(
                    [
                        lambda x=x, h=h, c=config: self.kernel.head_candidates(x, h, TOP_K, c)
                        for x, h in zip(inputs, heads, strict=True)
                    ]
                )
            except Exception as error:
                self.note(f"{kind}, {rows} rows, {size}", error)
                continue
            if best is None or ms < best[0]:
                best = (ms, size, found)
        if best is None:
            return
        name, engine_ms = self.engine(kind, heads, inputs)
        held = sum(
            t.numel() * t.element_size() for t in (heads[0].weight, heads[0].block_scale) if t is not None
        )
        share = held / best[0] / 1e6 / self.report["copy_gb_s"]
        result = {
            "head": kind,
            "rows": rows,
            "engine": name,
            "engine_ms": engine_ms,
            "kernel_ms": best[0],
            "ratio": None if engine_ms is None else engine_ms / best[0],
            "head_bytes": held,
            "share_of_copy": share,
            "config": best[1],
            "check": best[2],
        }
        self.report["results"].append(result)
        if engine_ms is not None:
            self.report["entries"].append(
                {
                    "device": self.report["device"],
                    "head": "nvfp4" if kind.startswith("nvfp4") else kind,
                    "layout": "swizzled" if kind.endswith("swizzled") else "linear",
                    "vocabulary": self.count,
                    "width": self.args.width,
                    "k": TOP_K,
                    "rows": rows,
                    "winner": "kernel" if engine_ms > best[0] else "engine",
                    "config": best[1],
                    "ratio": round(engine_ms / best[0], 3),
                }
            )
        self.save()
        print(line(result), flush=True)

    def run(self) -> None:
        self.report.update(bandwidths())
        print(
            f"{self.report['device']}: copy {self.report['copy_gb_s']:.0f} GB/s (memcpy"
            f" {self.report['copy_memcpy_gb_s']:.0f}), read {self.report['read_gb_s']:.0f}, top-k {self.args.top_k}"
        )
        for kind in self.args.heads.split(","):
            torch.cuda.empty_cache()
            pairs = [
                made.make_head(
                    self.kernel,
                    kind,
                    (self.args.vocabulary, self.args.width),
                    rows=self.count,
                    device="cuda",
                    seed=self.args.seed + i,
                )
                for i in range(2)
            ]
            self.projections: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = []
            for rows in ROWS:
                if self.left() < 5:
                    self.report["errors"].append({"what": f"{kind}, {rows} rows", "error": "out of time"})
                    continue
                self.one(kind, [h for h, _ in pairs], pairs[0][1], rows)
            del pairs
        self.save()


def line(r: dict[str, Any]) -> str:
    engine = "    not run" if r["engine_ms"] is None else f"{r['engine_ms']:8.3f} ms"
    ratio = "     " if r["ratio"] is None else f"{r['ratio']:4.2f}x"
    size = " ".join(str(v) for v in r["config"].values())
    return (
        f"{r['head']:15} {r['rows']:4} rows  {r['engine']:13}{engine}  kernel {r['kernel_ms']:7.3f} ms  {ratio}"
        f"  {100 * r['share_of_copy']:4.0f} % of copy  [{size}]"
    )


def warm(args: argparse.Namespace, kernel: ModuleType) -> None:
    """Compile each PARTS-th configuration into Triton's cache: the vocabulary is not in its key."""
    part, parts = args.warm
    jobs = [
        (kind, rows, size) for kind in args.heads.split(",") for rows in ROWS for size in sizes(kind, rows)
    ]
    for kind, rows, size in jobs[part::parts]:
        head, _ = made.make_head(kernel, kind, (256, args.width), rows=200, device="cuda", seed=1)
        x = torch.randn((rows, args.width), device="cuda").bfloat16()
        try:
            kernel.head_candidates(x, head, TOP_K, kernel.Config(**size))
        except Exception as error:  # said again, and recorded, when it is measured
            print(f"{kind} {rows} {size}: {type(error).__name__}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--time-limit", type=float, default=240, help="seconds")
    parser.add_argument("--top-k", choices=("engine", "torch"), default="engine")
    parser.add_argument("--heads", default="nvfp4,nvfp4_swizzled,dense,fp8")
    parser.add_argument("--vocabulary", type=int, default=248320)
    parser.add_argument("--width", type=int, default=5120)
    parser.add_argument("--padding", type=int, default=0, help="rows at the end that do not count")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 30))
    parser.add_argument("--compilers", type=int, default=8, help="processes that compile first; 0: none")
    parser.add_argument("--warm", type=int, nargs=2, metavar=("PART", "PARTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench/selector.py: no CUDA device", file=sys.stderr)
        return 75
    with tempfile.TemporaryDirectory() as folder:
        kernel = load_kernel(Path(folder))
        if args.warm:
            warm(args, kernel)
            return 0
        bench = Bench(args, kernel)
        command = [sys.executable, __file__, *sys.argv[1:], "--warm"]
        compilers = [subprocess.Popen([*command, str(i), str(args.compilers)]) for i in range(args.compilers)]
        for process in compilers:
            process.wait()
        bench.report["compile_s"] = round(time.monotonic() - bench.start, 1)
        bench.report["seed"] = args.seed
        bench.run()
    print("\n".join(line(r) for r in bench.report["results"]))
    return 0 if bench.report["results"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
