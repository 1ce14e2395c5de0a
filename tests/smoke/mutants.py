"""Engines with one thing broken on purpose, to see that the suite notices: a `sitecustomize` that patches a module as it loads.

`environment(folder, name)` writes it and returns the PYTHONPATH that makes every Python process started with it a mutant.
"""

from __future__ import annotations

import os
from pathlib import Path

# name -> (module, what is done to it once it is loaded)
MUTANTS = {
    # A loader that unpacks the head to BF16 and says nothing: the answers stay right.
    "head-unpacked": (
        "sglang.srt.model_executor.model_runner",
        """
import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
real = module.load_model_with_memory_saver

def load(*a, **k):
    loaded = real(*a, **k)
    head = getattr(loaded.model, "lm_head", None)
    if not k.get("is_draft_worker") and hasattr(head, "_cpu_ref_weight"):  # smoke/cpu_engine keeps the dense weight beside it
        dense = head._cpu_ref_weight.to(torch.bfloat16)
        for name in [n for n, _ in head.named_parameters()]:
            delattr(head, name)
        head.weight = torch.nn.Parameter(dense, requires_grad=False)
        head.quant_method = UnquantizedEmbeddingMethod()
    return loaded

module.load_model_with_memory_saver = load
""",
    ),
    # A DFLASH step that leaves the recurrent state as it was before the accepted block.
    "commit-dropped": (
        "sglang.srt.layers.attention.hybrid_linear_attn_backend",
        "module.HybridLinearAttnBackend.update_mamba_state_after_mtp_verify = lambda self, *a, **k: None",
    ),
    # ... or keeps the state of the first token of the block only.
    "commit-first": (
        "sglang.srt.layers.attention.hybrid_linear_attn_backend",
        "c = module.HybridLinearAttnBackend; real = c.update_mamba_state_after_mtp_verify\n"
        "c.update_mamba_state_after_mtp_verify = lambda self, last_correct_step_indices, **k: real(\n"
        "    self, last_correct_step_indices=last_correct_step_indices * 0, **k)",
    ),
}

_HOOK = """
import importlib.abc, importlib.machinery, sys

NAME = {name!r}
CODE = {code!r}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            exec(CODE, {{"module": module}})
            print("mutant: " + NAME + " is broken on purpose", file=sys.stderr, flush=True)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def environment(folder: Path, name: str) -> dict[str, str]:
    """os.environ with the mutant first on PYTHONPATH. KeyError for an unknown name."""
    module, code = MUTANTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HOOK.format(name=module, code=code))
    path = os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path}
