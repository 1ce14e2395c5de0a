"""Request and KV bookkeeping of speculative decoding: reference versions of SGLang's CPU ops."""

# ruff: noqa: PLR0917 (SGLang passes these arguments by position)
from __future__ import annotations

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """req_to_token[r, start:end] = the next end - start slots of out_cache_loc, request by request."""
    del pool_len
    at = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=False):
        req_to_token[r, s:e] = out_cache_loc[at : at + e - s].to(req_to_token.dtype)
        at += e - s


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: gather req_to_token[r, start:end] of every request into out_cache_loc."""
    del pool_len
    at = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=False):
        out_cache_loc[at : at + e - s] = req_to_token[r, s:e].to(out_cache_loc.dtype)
        at += e - s


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Move KV rows src -> tgt in every buffer (raw pointers, byte strides); safe for overlapping moves."""
    pairs = list(zip(tgt_loc.tolist(), src_loc.tolist(), strict=True))
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + s * stride, stride) for _, s in pairs]
        for (t, _), row in zip(pairs, rows, strict=True):
            ctypes.memmove(base + t * stride, row, stride)
