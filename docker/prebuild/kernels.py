"""docker/kernels.toml: which compiled modules an image carries, for which architecture, and how that is known. Pure.

A module is one call that yields it: for `flashinfer` a generator of FlashInfer's JIT (`module:function`, arguments; a string
that starts with `torch.` is a dtype), for `sglang` a factory that ends in SGLang's `load_jit`, or the arguments of
`load_jit` themselves as a recorded boot gave them.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Kind = Literal["flashinfer", "sglang"]
Known = Literal["recorded", "derived"]
Text = Annotated[str, Field(min_length=1)]


class KernelsError(Exception):
    """What is wrong with the list, in one line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arch(_Strict):
    """One compile target. `accepts` are the names under which cuobjdump may show its machine code."""

    capability: tuple[int, int]
    platforms: tuple[Literal["x86_64", "aarch64"], ...]
    accepts: Annotated[tuple[str, ...], Field(min_length=1)]
    machines: Text
    state: Text


class Module(_Strict):
    """One shared object. `gib` is what one of its compiler processes takes at most, `cpu_s` what a build of it took."""

    kind: Kind
    name: Text
    call: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    archs: Annotated[tuple[str, ...], Field(min_length=1)]
    known: Known
    seen: Text
    gib: Annotated[float, Field(gt=0)] = 1.2
    cpu_s: float | None = None
    accepts: tuple[str, ...] | None = None


class Absent(_Strict):
    """A module one might expect here, and why it is not."""

    name: Text
    why: Text


class Kernels(_Strict):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    arch: dict[str, Arch]
    module: tuple[Module, ...] = ()
    absent: tuple[Absent, ...] = ()
    unknown: tuple[dict[str, Any], ...] = ()  # of a recording: asked for, but not known by which call

    @model_validator(mode="after")
    def _known_once(self) -> Kernels:
        seen: set[tuple[str, str, str]] = set()
        for m in self.module:
            for arch in m.archs:
                if arch not in self.arch:
                    raise ValueError(f"module {m.name}: no [arch.{arch!r}]")
                if (m.kind, m.name, arch) in seen:
                    raise ValueError(f"module {m.name} is listed twice for {arch}")
                seen.add((m.kind, m.name, arch))
        return self

    def of(self, arch: str) -> list[Module]:
        """The modules for `arch`, in the order of the file. Raises KernelsError for an unknown architecture."""
        if arch not in self.arch:
            raise KernelsError(f"no architecture {arch}; there are {', '.join(sorted(self.arch))}")
        return [m for m in self.module if arch in m.archs]

    def accepts(self, module: Module, arch: str) -> tuple[str, ...]:
        return module.accepts or self.arch[arch].accepts


def parse(text: str, where: str = "kernels.toml") -> Kernels:
    """Raises KernelsError, one line, naming the field."""
    try:
        data = json.loads(text) if where.endswith(".json") else tomllib.loads(text)
        return Kernels.model_validate(data)
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise KernelsError(f"{where}: {place + ': ' if place else ''}{first['msg']}") from e
    except ValueError as e:  # both decoders' errors are of this kind
        raise KernelsError(f"{where}: {e}") from e


def load(*paths: Path) -> Kernels:
    """The list in the first file with the modules of the others (recordings) added; what stands in both is taken once."""
    first, *others = [parse(p.read_text(encoding="utf-8"), p.name) for p in paths]
    have = {(m.kind, m.name, arch) for m in first.module for arch in m.archs}
    more = [m for k in others for m in k.module if any((m.kind, m.name, a) not in have for a in m.archs)]
    return first.model_copy(update={"module": (*first.module, *more)})
