"""Put SGLang objects built on one machine into the cache of another, whose compilers print other banners.

SGLang's key holds the compilers' banners and every header, so a set built elsewhere is never hit. Here the engine computes its
own key, and where it would compile it is handed the object built from the same sources: the digests of SGLang's own files in
the set's record must be equal to those on this machine. Headers of the toolkit and the system are noted as they are here.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

OWN = ("kernels",)  # the anchor of SGLang's kernel sources in a record


class AdoptError(Exception):
    """The object was not built from what lies here."""


def leaf_of(source: Path, module_name: str) -> Path | None:
    """The newest finished build of a module in a cache folder (TARGET/MODULE/build-*/deps-*)."""
    found = [p.parent for p in source.glob(f"*/{module_name}/build-*/deps-*/{module_name}.so")]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def differing(entries: list[list[str]], digest_here: dict[str, str]) -> list[str]:
    """SGLang's own files in a record (`[root, relpath, sha256]`) that are not the same here."""
    return [rel for root, rel, sha in entries if root in OWN and digest_here.get(rel) != sha]


def adopt(
    modules: list[Any], source: Path, jit: Path, arch: tuple[int, int], value: Any
) -> list[dict[str, Any]]:
    """One row per module: `adopted`, `kept` (was there) or `left` (not in the set, other sources)."""
    os.environ["SGLANG_JIT_CACHE_DIR"] = str(jit)
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.jit.utils.compile import cache, loader

    state: dict[str, Any] = {}

    def build(*, spec: Any, build_dir: Path, build_file: str) -> Path:
        _ = build_file
        leaf = leaf_of(source, spec.module_name)
        if leaf is None:
            raise AdoptError("not in the set")
        entries = json.loads((leaf / "sgl_deps.json").read_text())
        paths = [
            p
            for root, rel, _ in entries
            if (p := cache._resolve_path(root=root, relpath=rel)) and p.is_file()
        ]
        here = {cache._normalize_path(p.resolve())[1]: cache._file_digest(p.resolve()) or "" for p in paths}
        if other := differing(entries, here):
            raise AdoptError(f"built from other sources: {', '.join(other)[:200]}")
        Path(build_dir).mkdir(parents=True, exist_ok=True)
        target = Path(build_dir) / f"{spec.module_name}.so"
        shutil.copyfile(leaf / target.name, target)
        state["paths"] = paths
        return target

    was = loader.ninja.build, loader.ninja.scan_dependencies
    loader.ninja.build, loader.ninja.scan_dependencies = build, lambda _staging: state["paths"]
    rows = []
    try:
        with override_jit_cuda_arch(*arch):
            for m in modules:
                state.clear()
                module, _, function = m.call.partition(":")
                f = getattr(importlib.import_module(module), function)
                row = {"kind": m.kind, "name": m.name}
                try:
                    getattr(f, "__wrapped__", f)(
                        *value(list(m.args)), **{k: value(v) for k, v in m.kwargs.items()}
                    )
                    row["state"] = "adopted" if state else "kept"
                except Exception as e:
                    row["state"] = f"left: {e}"
                rows.append(row)
    finally:
        loader.ninja.build, loader.ninja.scan_dependencies = was
    return rows
