"""Plain-torch stand-in for the `sgl_kernel` package on a machine without a GPU driver: reference numerics.

It shadows site-packages/sgl_kernel when its folder is first on PYTHONPATH. It sets reference functions as attributes
of torch.ops.sgl_kernel, where SGLang's CPU code looks for them, and answers every other name with a function
that raises NotImplementedError when it is called. `convert_weight_packed` is absent on purpose: its absence makes
cpu_has_amx_support() False, so SGLang takes its native torch paths.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

from sglang_cpu_ref import guard

if not guard.wanted():
    raise ImportError(
        "this sgl_kernel is the CPU reference (smoke/cpu_engine/shadow); "
        "take it off PYTHONPATH or set SGLANG_USE_CPU_ENGINE=1"
    )
guard.check()

import torch  # noqa: E402

from . import bookkeeping, gdn  # noqa: E402

__version__ = "0.4.10"
_REFERENCE: dict[str, Callable[..., Any]] = {
    name: fn
    for module in (gdn, bookkeeping)
    for name, fn in vars(module).items()
    if isinstance(fn, types.FunctionType) and not name.startswith("_")
}
for _name, _fn in _REFERENCE.items():
    if _name.endswith("_cpu"):
        setattr(torch.ops.sgl_kernel, _name, _fn)


def _lookup(module: str, name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{module}.{name}: CUDA-only kernel, no CPU reference")

    missing.__name__ = missing.__qualname__ = name
    return _REFERENCE.get(name, missing)


def __getattr__(name: str) -> Callable[..., Any]:
    return _lookup(__name__, name)


class _Submodule(types.ModuleType):
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _lookup(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """sgl_kernel.<anything real> imports as a module of callables that raise when called."""

    SUBMODULES = frozenset(
        [
            "allreduce",
            "attention",
            "cutlass_moe",
            "elementwise",
            "flash_attn",
            "flash_mla",
            "gemm",
            "grammar",
            "kvcacheio",
            "mamba",
            "memory",
            "moe",
            "quantization",
            "sampling",
            "spatial",
            "speculative",
            "top_k",
            "utils",
            "expert_specialization",
        ]
    )

    def find_spec(self, fullname, path=None, target=None):  # noqa: ARG002
        parent, _, leaf = fullname.partition(".")
        if parent == "sgl_kernel" and leaf in self.SUBMODULES:
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def create_module(self, spec):
        return _Submodule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())
