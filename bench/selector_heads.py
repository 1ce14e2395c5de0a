"""Heads with random contents, what their candidates are in float64, and the sizes worth a try (bench/selector.py)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def module_from(path: Path) -> ModuleType:
    """The module in one file, registered so that dataclasses and Triton find its source."""
    spec = importlib.util.spec_from_file_location("head_candidates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["head_candidates"] = module
    spec.loader.exec_module(module)
    return module


def _nvfp4(rows: int) -> list[tuple[int, ...]]:
    r = min(max(rows, 8), 64)
    if rows <= 16:
        return [(64, r, 256, 4, 4, 396), (64, r, 256, 4, 3, 396), (128, r, 256, 4, 3, 264)]
    return [(64, r, 256, 4, 3, 264), (128, r, 128, 4, 3, 264), (128, r, 128, 4, 4, 264)]


def _dense(rows: int) -> list[tuple[int, ...]]:
    r = min(max(rows, 8), 64)
    if rows <= 32:
        return [(64, r, 64, 4, 5, 396), (64, r, 128, 4, 4, 264)]
    return [(128, r, 64, 4, 4, 264), (128, min(rows, 128), 64, 4, 3, 132)]


def _fp8(rows: int) -> list[tuple[int, ...]]:
    r = min(max(rows, 8), 64)
    if rows <= 32:
        return [(64, r, 256, 4, 3, 396), (64, r, 128, 4, 4, 396)]
    return [(128, r, 64, 4, 4, 264), (128, r, 128, 4, 3, 132)]


# rows -> (block_n, block_r, block_k, warps, stages, programs)
CONFIGS: dict[str, Callable[[int], list[tuple[int, ...]]]] = {"nvfp4": _nvfp4, "dense": _dense, "fp8": _fp8}


def swizzle(scale: torch.Tensor) -> torch.Tensor:
    """[N, B] bytes to the 128x4 layout, padded with zeros."""
    n, b = scale.shape
    np_, bp = -(-n // 128) * 128, -(-b // 4) * 4
    padded = torch.zeros((np_, bp), dtype=torch.uint8, device=scale.device)
    padded[:n, :b] = scale
    return padded.reshape(np_ // 128, 4, 32, bp // 4, 4).permute(0, 3, 2, 1, 4).contiguous().reshape(np_, bp)


def make_head(
    hc: ModuleType, kind: str, shape: tuple[int, int], *, rows: int, device: str, seed: int
) -> tuple[Any, Callable[[int, int], torch.Tensor]]:
    """(a `hc.Head` of `shape` [N, K] of which `rows` count, its rows a..b as float64); kind as in --heads, or fp8_row."""
    n, width = shape
    g = torch.Generator(device=device).manual_seed(seed)
    if kind == "dense":
        w = (torch.randn((n, width), generator=g, device=device, dtype=torch.float32) * 0.02).bfloat16()
        return hc.Head(hc.DENSE, w, rows, width), lambda a, b: w[a:b].double()
    if kind in ("fp8", "fp8_row"):
        w = torch.randn((n, width), generator=g, device=device, dtype=torch.float32).to(torch.float8_e4m3fn)
        s = torch.rand((n if kind == "fp8_row" else 1,), generator=g, device=device) * 0.02 + 0.01
        return hc.Head(
            hc.FP8, w, rows, width, s
        ), lambda a, b: w[a:b].double() * (s[a:b, None] if kind == "fp8_row" else s).double()
    w = torch.randint(0, 256, (n, width // 2), generator=g, device=device, dtype=torch.uint8)
    bits = torch.randint(0, 0x7F, (n, width // 16), generator=g, device=device, dtype=torch.uint8)
    s = torch.tensor([0.0005], device=device)
    table = torch.tensor(E2M1, dtype=torch.float64, device=device)

    def dense(a: int, b: int) -> torch.Tensor:
        pair = torch.stack((w[a:b] & 15, w[a:b] >> 4), -1).reshape(b - a, width).long()
        block = bits[a:b].view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
        return table[pair] * block * s.double()

    swz = kind == "nvfp4_swizzled"
    return hc.Head(
        hc.NVFP4, w, rows, width, s, swizzle(bits) if swz else bits, hc.SWIZZLED if swz else hc.LINEAR
    ), dense


def logits64(
    hidden: torch.Tensor, dense: Callable[[int, int], torch.Tensor], rows: int, chunk: int = 8192
) -> torch.Tensor:
    return torch.cat([hidden.double() @ dense(a, min(a + chunk, rows)).T for a in range(0, rows, chunk)], 1)


def check(ids: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """How ids and values stand to float64 logits; `wrong`: rows whose candidates are no top-k within one rounding."""
    k = ids.shape[1]
    best, order = exact.topk(k + 1, -1)
    got = exact.gather(1, ids)
    eps = 2.0**-7 if values.dtype == torch.bfloat16 else 2.0**-10
    slack = best[:, :k].abs() * eps * 1.01 + exact.abs().amax(1, keepdim=True) * 1e-5
    descending = bool((values.float().diff(dim=1) <= 0).all())
    tied = values.float().diff(dim=1) == 0
    ties_low_first = bool((ids.diff(dim=1)[tied] > 0).all())
    unique = all(len(set(r)) == k for r in ids.tolist())
    value_ok = bool(
        ((values.double() - got).abs() <= got.abs() * eps * 0.51 + exact.abs().amax() * 1e-5).all()
    )
    return {
        "wrong": int(((best[:, :k] - got).abs() > slack).any(1).sum()),
        "descending": descending,
        "ties_low_first": ties_low_first,
        "unique": unique,
        "values": value_ok,
        "same_ids": float((ids == order[:, :k]).double().mean()),
    }


def good(found: dict[str, Any]) -> bool:
    return found["wrong"] == 0 and all(found[n] for n in ("descending", "ties_low_first", "unique", "values"))
