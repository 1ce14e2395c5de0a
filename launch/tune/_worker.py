"""Time one candidate: `python -m launch.tune._worker < job.json`, one JSON line per finished measurement on stdout.

The job names a role (`copy`, `fp4`, `fp8`, `bf16`), an option of it, whether FlashInfer may autotune, and shapes with row
counts. Layers are the engine's own (`ReplicatedLinear` with its ModelOpt methods), so weights are prepared and dispatched as
in a server. Calls are captured into a CUDA graph over enough weight copies that none is found in the L2 cache. A failing
shape is reported and the next one tried; what hangs or kills the process is for the parent to see (launch/tune/measure.py).

Lines: {"ready": {...}} once, then {"id", "us": [..]} or {"id", "error"}.
"""

# mypy: ignore-errors
# Run by the engine's own interpreter, never imported by the command: it is the one module here that needs torch.
from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SAMPLES = 15
COLD_BYTES = 256 << 20  # weights in rotation: well above the L2 of any card we know (SM120: 128 MB)
COPY_BYTES = 1 << 30
GRAPH_CALLS = 256  # upper bound of calls in one graph: weights of a megabyte and more are read cold


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    job = json.load(sys.stdin)
    # stdout carries the protocol: whatever libraries print goes to stderr.
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = protocol
    import torch

    device = job.get("device", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        say({"error": "PyTorch finds no GPU"})
        return 1
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    say({"ready": versions(torch, device)})
    if job["role"] == "copy":
        attempt("copy/device", lambda: copy_samples(torch, device, job.get("copy_bytes", COPY_BYTES)))
        return 0
    try:
        build = builder(torch, job["role"], job["option"], device)
    except Exception as error:
        for item in job["items"]:
            say({"id": item["id"], "error": one_line(error)})
        return 0
    for item in job["items"]:
        # Bound now: the loop variable must not move under the call.
        attempt(item["id"], lambda item=item: gemm_samples(torch, build, item, device, job.get("autotune")))
    return 0


def versions(torch: Any, device: str) -> dict[str, Any]:
    """What the numbers belong to."""
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": "cpu", "capability": None}
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name(0)
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    return found


def attempt(name: str, measure: Callable[[], list[float]]) -> None:
    try:
        say({"id": name, "us": [round(t, 3) for t in measure()]})
    except Exception as error:
        say({"id": name, "error": one_line(error)})


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def copy_samples(torch: Any, device: str, size: int) -> list[float]:
    """Microseconds per copy of `size` bytes within device memory (2 x size bytes move)."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return timed(torch, device, lambda: target.copy_(source), 1)


def gemm_samples(
    torch: Any, build: Any, item: dict[str, Any], device: str, autotune: bool | None
) -> list[float]:
    """Microseconds per call of one shape; every call reads another copy of the weight."""
    n, k, rows = item["n"], item["k"], item["m"]
    copies = max(2, min(GRAPH_CALLS, -(-item.get("cold_bytes", COLD_BYTES) // item["weight_bytes"])))
    calls = [build(n, k, item["format"]) for _ in range(copies)]
    x = torch.randn(rows, k, device=device) / 8
    tuning = contextlib.nullcontext()
    if autotune:
        from flashinfer.autotuner import autotune as flashinfer_autotune

        tuning = flashinfer_autotune(True)
    with torch.inference_mode():
        with tuning:
            y = calls[0](x)
        if tuple(y.shape) != (rows, n):
            raise ValueError(f"result has shape {tuple(y.shape)}, not {(rows, n)}")
        if not bool(torch.isfinite(y).all()):
            raise ValueError("result is not finite")

        def once() -> None:
            for call in calls:
                call(x)

        return timed(torch, device, graphed(torch, device, once), copies)


def graphed(torch: Any, device: str, once: Callable[[], None]) -> Callable[[], None]:
    """`once` as a CUDA graph, as the engine replays it: launch cost of Python is not part of a decoding step."""
    if device != "cuda":
        return once
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
        once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph.replay


def timed(torch: Any, device: str, call: Callable[[], Any], per: int) -> list[float]:
    """Microseconds per inner call, SAMPLES times, after warming up."""
    for _ in range(3):
        call()
    out = []
    if device != "cuda":
        for _ in range(SAMPLES):
            start = time.perf_counter()
            call()
            out.append((time.perf_counter() - start) * 1e6 / per)
        return out
    # About a millisecond between events: their resolution is half a microsecond.
    probe = events(torch, call, 1)
    repeat = max(1, min(200, int(1000 / max(probe, 1.0))))
    for _ in range(SAMPLES):
        out.append(events(torch, call, repeat) / repeat / per)
    return out


def events(torch: Any, call: Callable[[], Any], repeat: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeat):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def builder(
    torch: Any, role: str, option: str, device: str
) -> Callable[[int, int, str], Callable[[Any], Any]]:
    """(n, k, format) -> a call on x of [rows, k], with random weights prepared by the engine for this option."""
    if role == "bf16":

        def dense(n: int, k: int, _format: str) -> Callable[[Any], Any]:
            weight = torch.randn(n, k, device=device) / 64
            return lambda x: torch.nn.functional.linear(x, weight)

        return dense
    publish()
    if role == "fp4":
        from sglang.srt.layers.quantization import fp4_utils

        fp4_utils.FP4_GEMM_RUNNER_BACKEND = fp4_utils.Fp4GemmRunnerBackend(option)
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.layers.quantization import modelopt_quant as mq

    def quantized(n: int, k: int, form: str) -> Callable[[Any], Any]:
        if form == "fp8":
            config = mq.ModelOptFp8Config(True, None, [], {})
        else:
            config = mq.ModelOptFp4Config(True, None, 16, [], {})
            config.is_w4a16 = form == "w4a16"
        with torch.device(device):
            layer = ReplicatedLinear(k, n, bias=False, quant_config=config, prefix="layer")
        if form == "w4a16" and not isinstance(layer.quant_method, mq.ModelOptNvFp4A16LinearMethod):
            layer.quant_method = mq.ModelOptNvFp4A16LinearMethod(config)
        for name, p in layer.named_parameters():
            if p.dtype == torch.uint8:
                p.data.random_(0, 256)
            elif p.dtype == torch.float8_e4m3fn:
                p.data.copy_((torch.rand(p.shape, device=p.device, dtype=torch.float32) + 0.5).to(p.dtype))
            else:
                p.data.fill_(0.01 if "scale" in name else 1.0)
        layer.quant_method.process_weights_after_loading(layer)
        return lambda x: layer.quant_method.apply(layer, x)

    return quantized


def publish() -> None:
    """Default engine arguments, as far as a single layer needs them."""
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    reset_context()
    publish(ServerArgs(model_path="dummy"), role="tune", ranks=SpawnRanks(world_rank=0, gpu_id=0))


if __name__ == "__main__":
    raise SystemExit(main())
