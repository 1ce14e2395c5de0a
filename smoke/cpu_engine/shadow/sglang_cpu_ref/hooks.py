"""How the plug-in reaches into SGLang: named attributes and SGLang's own hook registry, never its source text.

Every target is looked up first; one that is gone raises MovedError, which ends the process. (SGLang's registry
logs a failed hook and goes on, which would leave a server with half of its reference code.)
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any


class MovedError(RuntimeError):
    """A name this plug-in relies on is not in the installed SGLang."""


def find(target: str) -> Any:
    """The object at a dotted path.

    Raises: MovedError naming the path.
    """
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as e:
        raise MovedError(
            f"{target} is not in the installed SGLang ({e}); smoke/cpu_engine/shadow must follow the engine"
        ) from e


def put(module: str, name: str, value: Any) -> None:
    """Set an attribute that exists: `module.name = value`."""
    find(f"{module}.{name}")
    setattr(find(module), name, value)


def replace(target: str, fn: Callable[..., Any]) -> None:
    """Replace a function everywhere it was imported."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    find(target)
    HookRegistry.register(target, fn, HookType.REPLACE)


def around(target: str, fn: Callable[..., Any]) -> None:
    """Wrap a function or method; fn(original, *args, **kwargs)."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    find(target)
    HookRegistry.register(target, fn, HookType.AROUND)


def install() -> None:
    """Gated delta net: the layer norms and the verify convolution."""
    from sgl_kernel import gdn

    # Without AMX their native path is Triton; this sends them to torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu.
    for module in ("layernorm_gated", "fused_norm_gate"):
        put(f"sglang.kernels.ops.attention.fla.{module}", "_use_cpu", True)
    put("sglang.srt.layers.attention.linear.gdn_backend", "causal_conv1d_update", gdn.causal_conv1d_update)
