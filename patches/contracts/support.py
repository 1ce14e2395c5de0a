"""The engine on a CPU, for contracts: set-up, TP ranks over gloo, and a loader that keeps accounts.

Nothing here runs a GPU kernel. The engine needs three helps without CUDA: a stand-in for the rotary op
it imports from vLLM off-GPU, the radix cache off (its recurrent-state snapshots want a GPU platform),
and gloo groups. Nothing at module level imports torch or the engine, so collection never fails for
want of a name: import what a patch adds inside the test.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patches.contracts.tiny_models import TinyModels

__all__ = [
    "Loaded",
    "RankError",
    "TinyModels",
    "build_model",
    "default_dtype",
    "engine_location",
    "init_engine",
    "load_noting",
    "publish_args",
    "spawn_ranks",
]

_GROUPS = {
    "world_group": "_WORLD",
    "tp_group": "_TP",
    "pp_group": "_PP",
    "moe_ep_group": "_MOE_EP",
    "moe_dp_group": "_MOE_DP",
    "moe_tp_group": "_MOE_TP",
    "attn_tp_group": "_ATTN_TP",
    "attn_cp_group": "_ATTN_CP",
}
_NO_FILL = ("cos_sin_cache",)  # buffers made into parameters by nobody; kept out of the sentinel fill


def engine_location() -> str:
    """Directory the engine would be imported from, without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return "none (sglang is not importable)"
    return str(Path(next(iter(spec.submodule_search_locations))).parent)


def stub_vllm() -> None:
    """Stand in for `vllm._custom_ops`, which RotaryEmbedding imports where there is no CUDA."""
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        return

    def rotary_embedding(*_a: Any, **_k: Any) -> None:
        raise RuntimeError("stub of vllm._custom_ops: the engine is loaded for inspection only")

    package, ops = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    ops.rotary_embedding = rotary_embedding  # type: ignore[attr-defined]
    package._custom_ops = ops  # type: ignore[attr-defined]
    sys.modules.update({"vllm": package, "vllm._custom_ops": ops})


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def publish_args(model_path: str | Path = "dummy", *, world_rank: int = 0, **fields: Any) -> Any:
    """Resolve ServerArgs and publish them for this process; returns them.

    With a real model directory the arguments are those of a scheduler; "dummy" skips everything that
    would read a model. Extra `fields` are ServerArgs fields (tp_size, speculative_algorithm, ...).
    """
    stub_vllm()
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    if str(model_path) != "dummy":
        for key, value in {
            "device": "cuda",
            "attention_backend": "triton",
            "sampling_backend": "pytorch",
            "disable_radix_cache": True,
            "skip_tokenizer_init": True,
            "mem_fraction_static": 0.5,
        }.items():
            fields.setdefault(key, value)
    reset_context()
    args = ServerArgs(model_path=str(model_path), **fields)
    publish(args, role="test", ranks=SpawnRanks(world_rank=world_rank, gpu_id=0))
    # The context forgets the groups on a reset; the module that built them still has them.
    groups = {name: getattr(parallel_state, g, None) for name, g in _GROUPS.items()}
    if groups["tp_group"] is None or groups["tp_group"].world_size == get_parallel().tp_size:
        get_parallel().override_permanently(**{n: g for n, g in groups.items() if g is not None})
    return args


def init_engine(rank: int = 0, world: int = 1, port: int | None = None, **fields: Any) -> Any:
    """Publish default arguments at tp_size=`world` and build gloo groups once per process.

    Returns the ServerArgs. Ranks above one need a common `port` (see `spawn_ranks`).
    """
    stub_vllm()
    import torch
    from sglang.srt.distributed.parallel_state import (
        init_distributed_environment,
        initialize_model_parallel,
        model_parallel_is_initialized,
    )

    if model_parallel_is_initialized():
        return publish_args(world_rank=rank, tp_size=world, **fields)
    if world > 1 and port is None:
        raise ValueError("ranks of one group need one port")
    if not torch.distributed.is_initialized():
        init_distributed_environment(
            world_size=world,
            rank=rank,
            local_rank=rank,
            backend="gloo",
            distributed_init_method=f"tcp://127.0.0.1:{port or free_port()}",
        )
    args = publish_args(world_rank=rank, tp_size=world, **fields)
    with _gloo_groups_only():
        initialize_model_parallel(backend="gloo")
    return args


@contextmanager
def _gloo_groups_only() -> Iterator[None]:
    """Build groups without NCCL and without custom all-reduce: both insist on CUDA devices."""
    from sglang.srt.distributed import parallel_state

    original = parallel_state.init_model_parallel_group

    def build(*a: Any, **kw: Any) -> Any:
        kw |= {"use_pynccl": False, "use_custom_allreduce": False, "use_mscclpp": False}
        return original(*a, **kw)

    parallel_state.init_model_parallel_group = build
    try:
        yield
    finally:
        parallel_state.init_model_parallel_group = original


# --- tensor-parallel ranks -----------------------------------------------------------------------


class RankError(AssertionError):
    """A rank failed; the message holds its traceback."""


def _rank_main(
    rank: int, world: int, *, fn: Callable[..., Any], port: int, box: str, engine: bool, args: tuple[Any, ...]
) -> None:
    out = Path(box) / f"{rank}.pkl"
    try:
        import torch

        torch.set_num_threads(1)
        if engine:
            init_engine(rank, world, port)
        result: tuple[bool, Any] = (True, fn(rank, world, *args))
    except BaseException as e:
        result = (False, f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
    tmp = out.with_suffix(".tmp")
    tmp.write_bytes(pickle.dumps(result))
    tmp.replace(out)


def spawn_ranks(
    fn: Callable[..., Any], world: int, *args: Any, timeout: float = 180.0, engine: bool = True
) -> list[Any]:
    """Run `fn(rank, world, *args)` in `world` processes with gloo groups; returns the ranks' results.

    `fn` and its arguments are pickled: define `fn` at module level. One start costs several seconds
    (each rank imports the engine), so ask many questions per call. The first rank that raises fails the
    test with its own traceback and the others are ended; so does a hang after `timeout` seconds.
    """
    import torch.multiprocessing as mp

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ranks-") as box:
        ctx = mp.get_context("spawn")
        ranks = [
            ctx.Process(
                target=_rank_main,
                args=(r, world),
                kwargs={"fn": fn, "port": port, "box": box, "engine": engine, "args": args},
                daemon=True,
            )
            for r in range(world)
        ]
        for p in ranks:
            p.start()
        try:
            return _collect(ranks, Path(box), time.monotonic() + timeout, timeout)
        finally:
            for p in ranks:
                if p.is_alive():
                    p.kill()
                p.join()


def _collect(ranks: list[Any], box: Path, deadline: float, timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ranks):
        for r, p in enumerate(ranks):
            if r in results:
                continue
            done = not p.is_alive()  # read before the file: a rank writes, then ends
            path = box / f"{r}.pkl"
            if path.exists():
                ok, value = pickle.loads(path.read_bytes())
                if not ok:
                    raise RankError(f"rank {r} of {len(ranks)}: {value}")
                results[r] = value
            elif done:
                raise RankError(f"rank {r} of {len(ranks)} ended with exit code {p.exitcode} and no result")
        if time.monotonic() > deadline:
            missing = sorted(set(range(len(ranks))) - set(results))
            raise RankError(f"ranks {missing} gave no result within {timeout:.0f} s (a collective hangs?)")
        if len(results) < len(ranks):
            ranks[next(r for r in range(len(ranks)) if r not in results)].join(0.05)
    return [results[r] for r in range(len(ranks))]


# --- building and loading ------------------------------------------------------------------------


@contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """torch's default dtype inside the block, restored even when building fails."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Loaded:
    """A model fed tensor by tensor, and the accounts of it."""

    model: Any
    methods: dict[str, str]  # module -> class name of its quantization method
    unread: list[str] = field(default_factory=list)  # checkpoint tensors that changed no parameter
    unset: list[str] = field(default_factory=list)  # parameters no tensor wrote a single element of
    partial: list[str] = field(default_factory=list)  # parameters with elements left unwritten


def _sentinel(p: Any) -> Any:
    import torch

    if p.dtype in (torch.uint8, torch.int8):
        return p.view(torch.uint8) == 0xA5
    if p.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return p.view(torch.uint8) == 0x7F
    return torch.isnan(p) if p.is_floating_point() else p == -999


def _fill(p: Any) -> None:
    import torch

    if p.dtype in (torch.uint8, torch.int8):
        p.view(torch.uint8).fill_(0xA5)
    elif p.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        p.view(torch.uint8).fill_(0x7F)
    else:
        p.fill_(float("nan") if p.is_floating_point() else -999)


def load_noting(
    model: Any, tensors: Iterable[tuple[str, Any]] | dict[str, Any], *, one_by_one: bool = True
) -> Loaded:
    """Fill every parameter with a sentinel, load, and report what was not read or not written.

    `one_by_one` calls `load_weights` once per tensor, which is what finds `unread`; a loader that checks
    completeness at its end must be called once with all (`one_by_one=False`, `unread` then stays empty).
    A checkpoint tensor that happens to hold the sentinel throughout would be missed: use random values.
    """
    import torch

    items = list(tensors.items() if isinstance(tensors, dict) else tensors)
    params = {n: p for n, p in model.named_parameters() if not n.endswith(_NO_FILL)}
    with torch.no_grad():
        for p in params.values():
            _fill(p.data)

    def left() -> dict[str, int]:
        return {n: int(_sentinel(p.data).sum()) for n, p in params.items()}

    before, unread = left(), []
    if one_by_one:
        for name, w in items:
            model.load_weights([(name, w)])
            after = left()
            if after == before:
                unread.append(name)
            before = after
    else:
        model.load_weights(iter(items))
        before = left()
    return Loaded(
        model,
        methods_of(model),
        unread,
        [n for n, p in params.items() if p.numel() and before[n] == p.numel()],
        [n for n, p in params.items() if 0 < before[n] < p.numel()],
    )


def methods_of(model: Any) -> dict[str, str]:
    """Module name -> class name of its quantization method, for every module that has one."""
    return {
        n: type(m.quant_method).__name__
        for n, m in model.named_modules()
        if getattr(m, "quant_method", None) is not None
    }


def build_model(args: Any, *, draft_path: str | Path | None = None) -> tuple[Any, Any, Any]:
    """(model, model_config, quant_config) of the target of `args`, or of the draft at `draft_path`.

    This is the engine's own path: ModelConfig.from_server_args, the quantization config of the
    checkpoint, the class of its architecture. Weights are uninitialised.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model

    extra: dict[str, Any] = {}
    if draft_path is not None:
        extra = {"model_path": str(draft_path), "is_draft_model": True}
    config = ModelConfig.from_server_args(args, **extra)
    load_config = LoadConfig()
    quant = _get_quantization_config(config, load_config)
    with default_dtype(config.dtype):
        model = _initialize_model(config, load_config, quant)
    return model, config, quant


def environment(**variables: str) -> dict[str, str]:
    """The current environment with `variables` set: for a contract that needs a fresh process."""
    return {**os.environ, **variables}
