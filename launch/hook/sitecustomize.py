"""Put this folder first on the engine's PYTHONPATH. SPARK_RECORD=DIR: write down every compiled module that the boot asks for.
SPARK_NO_COMPILE=1: let FlashInfer's refusal to compile name the module, which it holds but does not print; and let it take a
module from its cache when ninja finds nothing to do, which is not compiling but which FLASHINFER_DISABLE_JIT refuses too.

The loaders of the engine are wrapped when they are imported: FlashInfer's `build_and_load` (nvcc and CuTe-DSL) and SGLang's
`load_jit`. One JSON line per request goes to DIR/<pid>.jsonl. Nothing is changed in what they do.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

FOLDER = os.environ.get("SPARK_RECORD", "")
NAME_REFUSED = os.environ.get("SPARK_NO_COMPILE", "") not in ("", "0")
CALLS: dict[str, dict[str, Any]] = {}  # FlashInfer: module name -> the generator's call that made its spec


def plain(value: Any) -> Any:
    """A call's argument as JSON; a dtype as `torch.NAME`. TypeError for what cannot be written."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if type(value).__name__ == "dtype":
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(type(value).__name__)


def note(row: dict[str, Any]) -> None:
    try:
        with open(os.path.join(FOLDER, f"{os.getpid()}.jsonl"), "a") as f:  # noqa: PTH118, PTH123
            f.write(json.dumps(row) + "\n")
    except OSError:  # a recording must not end a boot
        pass


def generator_call() -> dict[str, Any]:
    """The outermost running `gen_*` function with its arguments, as {call, args}; nothing when none can be written."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name.lstrip("_").startswith("gen_") and code.co_name != "gen_jit_spec":
            names = code.co_varnames[: code.co_argcount]
            try:
                args = [plain(frame.f_locals[n]) for n in names]
                found = {"call": f"{frame.f_globals['__name__']}:{code.co_name}", "args": args}
            except (TypeError, KeyError):
                pass
        frame = frame.f_back
    return found


def up_to_date(spec: Any) -> bool:
    """Whether ninja would have nothing to do for this module of FlashInfer's cache."""
    if not spec.jit_library_path.exists():
        return False
    spec.write_ninja()
    argv = ["ninja", "-n", "-C", str(spec.build_dir.resolve()), "-f", str(spec.ninja_path.resolve())]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    return "no work to do" in said


def flashinfer(module: Any) -> None:
    if NAME_REFUSED:
        missing = module.MissingJITCacheError.__init__

        def named(self: Any, message: str, spec: Any = None) -> None:
            missing(self, f"{message} Module: {getattr(spec, 'name', 'unknown')}", spec)

        module.MissingJITCacheError.__init__ = named
        try_load = module.JitSpecNvcc.try_load

        def cached(self: Any) -> Any:
            return try_load(self) or (self.load() if up_to_date(self) else None)

        module.JitSpecNvcc.try_load = cached
    if not FOLDER:
        return
    register = module.JitSpecRegistry.register
    load = module.JitSpec.build_and_load

    @functools.wraps(register)
    def registered(self: Any, spec: Any) -> Any:
        CALLS.setdefault(spec.name, generator_call())
        return register(self, spec)

    @functools.wraps(load)
    def loaded(self: Any) -> Any:
        kind = "flashinfer" if type(self).__name__ == "JitSpecNvcc" else "cute"
        note({"kind": kind, "name": self.name, **CALLS.get(self.name, {})})
        return load(self)

    module.JitSpecRegistry.register = registered
    module.JitSpec.build_and_load = loaded


def sglang(module: Any) -> None:
    if not FOLDER:
        return
    inner = module.load_jit

    @functools.wraps(inner)
    def load_jit(*args: Any, **kwargs: Any) -> Any:
        row: dict[str, Any] = {"kind": "sglang", "name": "_".join(map(str, args))}
        try:
            call = {"call": f"{inner.__module__}:load_jit", "args": plain([str(a) for a in args])}
            row.update(call, kwargs={k: plain(v) for k, v in kwargs.items() if v is not None})
        except TypeError as e:
            row["why"] = f"an argument is a {e}"
        note(row)
        return inner(*args, **kwargs)

    module.load_jit = load_jit


WRAP: dict[str, Callable[[Any], None]] = {
    "flashinfer.jit.core": flashinfer,
    "sglang.kernels.jit.utils.compile.loader": sglang,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        wrap = WRAP.get(name)
        if wrap is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER:
    os.makedirs(FOLDER, exist_ok=True)  # noqa: PTH103
if FOLDER or NAME_REFUSED:
    sys.meta_path.insert(0, _Finder())


def _next() -> None:
    """Run the sitecustomize that ours hides, if there is one: the CPU engine and some systems bring theirs."""
    mine = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    rest = [p for p in sys.path if os.path.abspath(p or ".") != mine]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_next()
