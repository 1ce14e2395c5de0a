"""What is to be measured: candidates of each role, and their shapes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.gemms import Gemm
from launch.resolve import Resolved

COPY = "copy"
# Native FP4 GEMMs need Blackwell (upstream-gaps D1); before it Marlin is the only one (engine 0.5.23, fp4_utils.py).
FP4 = {
    "9.0": ("marlin",),
    "12.0": ("flashinfer_cutlass", "flashinfer_cudnn", "flashinfer_b12x", "flashinfer_auto", "marlin"),
    "12.1": ("flashinfer_cutlass", "flashinfer_cudnn", "flashinfer_b12x", "flashinfer_auto", "marlin"),
}
TUNABLE = (
    "flashinfer_cutlass",
    "flashinfer_b12x",
    "flashinfer_auto",
)  # the engine's autotune gate (B2.1, B2.4)
FORMATS = {"fp4": ("nvfp4", "w4a16"), "fp8": ("fp8",), "bf16": ("bf16",)}
FP8_ENV: Mapping[str, Mapping[str, str]] = {
    "engine": {},
    "marlin": {"SGLANG_FORCE_FP8_MARLIN": "1"},
    "kda": {"SGLANG_KDA_ON_SM121": "1"},
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice of one role. `env` is set for its process, and for the server when it wins.

    One that is not `eligible` is measured and shown, never chosen.
    """

    role: str
    option: str
    autotune: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    eligible: bool = True

    @property
    def name(self) -> str:
        return f"{self.role}/{self.option}{'+autotune' if self.autotune else ''}"


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement: `gemm` at `rows`. `key` is what a finished one is kept under."""

    candidate: Candidate
    gemm: Gemm | None
    rows: int

    @property
    def key(self) -> str:
        if self.gemm is None:
            return self.candidate.name
        g = self.gemm
        return f"{self.candidate.name} {g.format} {g.n}x{g.k} m{self.rows}"

    def job(self) -> dict[str, Any]:
        """As the worker reads it."""
        if self.gemm is None:
            return {"id": self.key}
        g = self.gemm
        return {
            "id": self.key, "m": self.rows, "n": g.n, "k": g.k, "format": g.format, "weight_bytes": g.weight_bytes
        }  # fmt: skip


def row_counts(resolved: Resolved) -> tuple[int, ...]:
    """Rows of a step for 1, 4 and 8 running requests (fewer where the preset allows fewer): requests x draft tokens."""
    each = resolved.preset.draft.tokens if resolved.preset.draft else 1
    running = resolved.engine.get("max_running_requests")
    most = int(running) if isinstance(running, int) else 8
    return tuple(sorted({each * min(n, most) for n in (1, 4, 8)}))


def candidates(resolved: Resolved, capability: str, gemms: Sequence[Gemm]) -> tuple[Candidate, ...]:
    """Candidates of every role the checkpoint has; the first of a role is what the preset does today."""
    present = {g.format for g in gemms}
    tuned = not resolved.engine.get("disable_flashinfer_autotune")
    out = []
    if present & set(FORMATS["fp4"]):
        options = FP4.get(capability, ("marlin",))
        today = str(resolved.engine.get("fp4_gemm_backend", "auto"))
        if today not in options:
            # `auto` as P11 resolves it.
            today = "flashinfer_b12x" if capability == "12.0" else options[0]
        for option in (today, *(o for o in options if o != today)):
            modes = (tuned, not tuned) if option in TUNABLE else (False,)
            # Turned off on unified memory because its second phase has frozen machines: speed does not undo that.
            safe = tuned or not resolved.machine.unified
            out += [Candidate("fp4", option, mode, eligible=safe or not mode) for mode in modes]
    if "fp8" in present:
        out += [Candidate("fp8", o, env=FP8_ENV[o]) for o in ("engine", "marlin")]
        if capability == "12.1":
            out.append(Candidate("fp8", "kda", env=FP8_ENV["kda"]))
    if "bf16" in present:
        out.append(Candidate("bf16", "cublas"))
    return tuple(out)


def work(resolved: Resolved, capability: str, gemms: Sequence[Gemm]) -> tuple[Item, ...]:
    """All measurements, most wanted first: copy bandwidth, then today's choice of each role, then the others."""
    found = candidates(resolved, capability, gemms)
    first = {c.role: c for c in reversed(found)}
    ordered = [*first.values(), *(c for c in found if c is not first[c.role])]
    ordered.sort(key=lambda c: c is not first[c.role])
    items = [Item(Candidate(COPY, "device"), None, 0)]
    for c in ordered:
        shapes = {(g.n, g.k, g.format): g for g in gemms if g.format in FORMATS[c.role]}
        items += [Item(c, g, m) for g in shapes.values() for m in row_counts(resolved)]
    return tuple(items)
