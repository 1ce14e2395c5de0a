"""DFLASH (and what shares its worker) on CPU with the torch_native attention backend."""

# ruff: noqa: PLR0917 (SGLang passes these arguments by position)
from __future__ import annotations

from typing import Any

import torch

from . import hooks

BACKEND = "torch_native"


class DraftPlatform:
    """SGLang's platform object as the speculative argument checks see it: CPU takes these algorithms.

    The checks ask an out-of-tree platform what it supports; only they get this object, so every other question
    (attention backend, memory, graphs) is still answered by SGLang's own CpuSRTPlatform.
    """

    ALGORITHMS = ("DFLASH", "DSPARK")

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in self.ALGORITHMS

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return self.supports_speculative_algorithm(algorithm) and backend == BACKEND

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        del algorithm
        return BACKEND


class VerifyBatch:
    """A forward batch with the extend_* fields that a TARGET_VERIFY batch lacks: n new tokens per request."""

    def __init__(self, batch: Any, n: int) -> None:
        self._batch = batch
        self.extend_prefix_lens = batch.seq_lens
        self.extend_seq_lens = torch.full_like(batch.seq_lens, n)
        self.seq_lens = batch.seq_lens + n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


def forward_extend(
    original: Any,
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if forward_batch.forward_mode.is_target_verify():
        spec = forward_batch.spec_info
        if getattr(spec, "tree_topk", 1) != 1:
            raise NotImplementedError("cpu reference: only chains are verified, not trees")
        forward_batch = VerifyBatch(forward_batch, spec.draft_token_num)
    return original(self, q, k, v, layer, forward_batch, *args, **kwargs)


def draft_attention_init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.use_table_qk_norm_rope = False  # a Triton kernel


def scatter_mamba_states(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None = None,
    mamba_steps_to_track: torch.Tensor | None = None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Commit the recurrent and convolution state after the last accepted step of every request."""
    pairs = list(zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True))
    if mamba_caches.temporal.numel():
        pairs.append((mamba_caches.temporal, mamba_caches.intermediate_ssm))
    for index, steps in (
        (state_indices_tensor, last_correct_step_indices),
        (mamba_track_indices, mamba_steps_to_track),
    ):
        if index is None or steps is None:
            continue
        for i, (slot, step) in enumerate(zip(index.tolist(), steps.tolist(), strict=False)):
            row = i if src_indices_raw is None else int(src_indices_raw[i])
            if slot < 0 or step < 0 or row < 0:
                continue
            for dst, src in pairs:
                dst[:, slot] = src[:, row, step].to(dst.dtype)


def chain_speculative_sampling(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
) -> None:
    """Rejection sampling along a chain: accept while u * q < p, then sample from norm(max(p - q, 0))."""
    del retrive_next_token, retrive_next_sibling, threshold_single, threshold_acc, deterministic
    if block_verification:
        raise NotImplementedError("cpu reference: block verification")
    batch, n_tokens = candidates.shape
    for b in range(batch):
        last, n = int(retrive_index[b, 0]), 0
        accept_index[b, 0] = last
        for step in range(1, n_tokens):
            token = int(candidates[b, step])
            p, q = float(target_probs[b, n, token]), float(draft_probs[b, n, token])
            if not (0.0 < q <= 1.0 and float(uniform_samples[b, step - 1]) * q < p):
                break
            n += 1
            predicts[last] = token
            last = int(retrive_index[b, step])
            accept_index[b, n] = last
        accept_token_num[b] = n
        w = target_probs[b, n].float()
        if n < n_tokens - 1:
            q_row = draft_probs[b, n].float()
            w = (w - torch.where((q_row >= 0) & (q_row <= 1), q_row, torch.zeros_like(q_row))).clamp_min(0)
        hit = (w.cumsum(0) > float(uniform_samples_for_final_sampling[b]) * w.sum()).nonzero()
        predicts[last] = int(hit[0]) if len(hit) else w.numel() - 1


def install() -> None:
    choices = "sglang.srt.arg_groups.choices"
    if BACKEND not in hooks.find(f"{choices}.DRAFT_ATTENTION_BACKEND_CHOICES"):
        hooks.find(f"{choices}.add_draft_attention_backend_choices")([BACKEND])
    checks = "sglang.srt.arg_groups.speculative_hook"
    hooks.put(checks, "current_platform", DraftPlatform(hooks.find(f"{checks}.current_platform")))
    hooks.around(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        forward_extend,
    )
    dflash = "sglang.srt.models.dflash"
    hooks.around(f"{dflash}.DFlashAttention.__init__", draft_attention_init)
    hooks.put(dflash, "_flashinfer_top_k", None)  # its absence means torch.topk
    hooks.replace(
        "sglang.kernels.ops.mamba.mamba_state_scatter_triton.scatter_mamba_states_after_mtp_verify",
        scatter_mamba_states,
    )
    hooks.replace(
        "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
        chain_speculative_sampling,
    )
    record_stream = torch.Tensor.record_stream

    def maybe_record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":  # a CPU stream is no stream to record
            record_stream(self, stream)

    torch.Tensor.record_stream = maybe_record_stream  # type: ignore[method-assign]
