"""SGLang general plugin: plain-torch reference code for what otherwise needs Triton or CUDA.

Reference numerics for tests, not a product. Loaded through the entry point of the dist-info beside this package.
"""

from __future__ import annotations

from . import guard


def register() -> None:
    """Install every hook, or end the process with one line that names what moved in SGLang."""
    if not guard.wanted():
        return
    guard.check()
    from . import hooks, quant, spec

    try:
        hooks.install()
        quant.install()
        spec.install()
    except hooks.MovedError as e:
        guard.stop(str(e))
