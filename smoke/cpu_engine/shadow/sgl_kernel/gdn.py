"""Gated delta net (Qwen3.5, Qwen3-Next) in plain torch: norms, convolution, delta rule. Slow; for tiny models.

Shapes: T tokens of a ragged batch, H key heads, HV value heads, K and V head widths. Signatures are those with
which SGLang calls torch.ops.sgl_kernel.*_cpu and its Triton kernels.
"""

# ruff: noqa: PLR0917 (SGLang passes these arguments by position)
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Tensor = torch.Tensor


# ------------------------------------------------------------------------------------------ norms
def _gemma_rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    return (f * (1.0 + w.float())).to(x.dtype)


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    x.mul_(torch.sigmoid(gate.reshape(x.shape)))


def fused_qk_gemma_rmsnorm_cpu(q: Tensor, k: Tensor, qw: Tensor, kw: Tensor, eps: float, head_dim: int):
    return _gemma_rms(q.reshape(-1, head_dim), qw, eps), _gemma_rms(k.reshape(-1, head_dim), kw, eps)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, qw: Tensor, kw: Tensor, eps: float, head_dim: int, num_head: int
):
    q, g = q_gate.reshape(-1, num_head, 2 * head_dim).split(head_dim, -1)
    q, k = fused_qk_gemma_rmsnorm_cpu(q, k, qw, kw, eps, head_dim)
    return q, k, g.reshape(-1, head_dim).contiguous()


def fused_rmsnorm_gated_cpu(x: Tensor, w: Tensor, z: Tensor, eps: float) -> Tensor:
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * w.float()
    return (f * F.silu(z.float())).to(x.dtype)


# ------------------------------------------------------------------------------------------ projections
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, nk: int, nv: int, dk: int, dv: int
):
    """Columns are [q | k | v | z] and [b | a]."""
    qkv, z = qkvz.split([2 * nk * dk + nv * dv, nv * dv], -1)
    b, a = ba.split([nv, nv], -1)
    return qkv.contiguous(), z.reshape(-1, nv, dv).contiguous(), b.contiguous(), a.contiguous()


def fused_qkvzba_split_reshape_cat_cpu(qkvz: Tensor, ba: Tensor, nk: int, nv: int, dk: int, dv: int):
    """Columns are grouped by key head: [q k v.. z..] and [b.. a..] (Qwen3-Next)."""
    r, t = nv // nk, qkvz.shape[0]
    q, k, v, z = qkvz.view(t, nk, -1).split([dk, dk, r * dv, r * dv], -1)
    b, a = ba.view(t, nk, -1).split([r, r], -1)
    qkv = torch.cat([q.reshape(t, -1), k.reshape(t, -1), v.reshape(t, -1)], -1)
    return (
        qkv,
        z.reshape(t, nv, dv).contiguous(),
        b.reshape(t, nv).contiguous(),
        a.reshape(t, nv).contiguous(),
    )


def fused_gdn_gating_cpu(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor):
    g = -torch.exp(a_log.float()) * F.softplus(a.float() + dt_bias.float())
    return g.unsqueeze(0), torch.sigmoid(b.float()).unsqueeze(0)


# ------------------------------------------------------------------------------------------ depthwise causal conv
def _activate(y: Tensor, activation: Any) -> Tensor:
    return F.silu(y) if activation in ("silu", "swish", True) else y


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Any = None,
    conv_states: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    cache_indices: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    seq_lens_cpu: Any = None,
    pad_slot_id: int = -1,
    **_: Any,
) -> Tensor:
    """x [dim, T], ragged over query_start_loc; updates conv_states[slot] [dim, width - 1] in place."""
    del seq_lens_cpu
    dim, width = weight.shape
    out = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    for i in range(len(bounds) - 1):
        s, e = bounds[i], bounds[i + 1]
        slot = int(cache_indices[i]) if cache_indices is not None else i
        if slot == pad_slot_id or e <= s:
            continue
        tail = conv_states[slot][:, -(width - 1) :]
        seen = has_initial_state is not None and bool(has_initial_state[i])
        full = torch.cat([(tail if seen else torch.zeros_like(tail)).to(x.dtype), x[:, s:e]], 1)
        y = F.conv1d(
            full.float().unsqueeze(0),
            weight.float().unsqueeze(1),
            None if bias is None else bias.float(),
            groups=dim,
        )[0]
        out[:, s:e] = _activate(y, activation).to(x.dtype)
        tail.copy_(full[:, -(width - 1) :])
    return out


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Any = None,
    cache_seqlens: Any = None,
    conv_state_indices: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Tensor | None = None,
    pad_slot_id: int = -1,
    **_: Any,
) -> Tensor:
    """x [B, dim] or [B, dim, T]. In a speculative verify the window after step t also goes to
    intermediate_conv_window[index, t]; the commit picks one of them."""
    del cache_seqlens, retrieve_next_token, retrieve_next_sibling
    flat = x.dim() == 2
    if flat:
        x = x.unsqueeze(-1)
    batch, _dim, steps = x.shape
    width = weight.shape[1]
    out = torch.zeros_like(x)
    parents = retrieve_parent_token.tolist() if retrieve_parent_token is not None else None
    for i in range(batch):
        slot = int(conv_state_indices[i]) if conv_state_indices is not None else i
        if slot == pad_slot_id:
            continue
        windows, w = [], conv_state[slot][:, -(width - 1) :].to(x.dtype)
        for t in range(steps):
            if parents is not None and t > 0:
                w = windows[parents[i][t]]
            full = torch.cat([w, x[i, :, t : t + 1]], 1)
            y = (full.float() * weight.float()).sum(1)
            if bias is not None:
                y = y + bias.float()
            out[i, :, t] = _activate(y, activation).to(x.dtype)
            w = full[:, 1:]
            windows.append(w)
            if intermediate_conv_window is not None:
                j = int(intermediate_state_indices[i])
                if j >= 0:
                    intermediate_conv_window[j, t] = w.to(intermediate_conv_window.dtype)
        # As the Triton kernel does; the commit of a verify overwrites it.
        conv_state[slot][:, -(width - 1) :] = w.to(conv_state.dtype)
    return out.squeeze(-1) if flat else out


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Any,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: Any,
    **_: Any,
) -> Tensor:
    return causal_conv1d_fn(
        x,
        weight,
        bias,
        activation,
        conv_states,
        has_initial_state,
        cache_indices,
        query_start_loc,
        seq_lens_cpu,
    )


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Any,
    conv_state_indices: Tensor,
    **kw: Any,
) -> Tensor:
    return causal_conv1d_update(
        x, conv_states, weight, bias, activation, conv_state_indices=conv_state_indices, **kw
    )


# ------------------------------------------------------------------------------------------ gated delta rule
def _l2(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def _delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    l2norm: bool,
    scale: float,
    save: Tensor | None = None,
    parents: list[int] | None = None,
):
    """q, k [T, H, K], v [T, HV, V], g, beta [T, HV], state [HV, V, K] fp32 -> (o [T, HV, V], state)."""
    r = v.shape[1] // q.shape[1]
    q, k, v = q.float(), k.float(), v.float()
    if l2norm:
        q, k = _l2(q), _l2(k)
    q = (q * scale).repeat_interleave(r, 1)
    k = k.repeat_interleave(r, 1)
    decay, beta = g.float().exp(), beta.float()
    out, history = torch.empty_like(v), []
    for t in range(v.shape[0]):
        if parents is not None and t > 0:
            state = history[parents[t]]
        state = state * decay[t][:, None, None]
        delta = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + delta[:, :, None] * k[t][:, None, :]
        out[t] = torch.einsum("hvk,hk->hv", state, q[t])
        if parents is not None:
            history.append(state)
        if save is not None:
            save[t] = state.to(save.dtype)
    return out, state


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    initial_state_indices: Tensor | None = None,
    **_: Any,
):
    """Prefill: q, k [1, T, H, K], v [1, T, HV, V]; initial_state[slot] is updated in place."""
    if head_first:
        raise NotImplementedError("cpu reference: head_first")
    out = torch.zeros_like(v)
    bounds, scale = cu_seqlens.tolist(), k.shape[-1] ** -0.5
    for i in range(len(bounds) - 1):
        s, e = bounds[i], bounds[i + 1]
        slot = int(initial_state_indices[i])
        if slot < 0 or e <= s:
            continue
        o, state = _delta_rule(
            q[0, s:e], k[0, s:e], v[0, s:e], g[0, s:e], beta[0, s:e],
            initial_state[slot].float(), use_qk_l2norm_in_kernel, scale,
        )  # fmt: skip
        out[0, s:e] = o.to(v.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,  # noqa: N803 (the name SGLang passes)
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: Any = None,
    retrieve_parent_token: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Decode and verify: one or more steps for every request of cu_seqlens."""
    del softplus_beta, softplus_threshold, cache_steps
    if is_kda:
        raise NotImplementedError("cpu reference: KDA")
    g, beta = fused_gdn_gating_cpu(A_log, a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), dt_bias)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out = torch.zeros_like(v)
    bounds = cu_seqlens.tolist()
    parents = retrieve_parent_token.tolist() if retrieve_parent_token is not None else None
    for i in range(len(bounds) - 1):
        s, e = bounds[i], bounds[i + 1]
        slot = int(initial_state_indices[i])
        if slot < 0 or e <= s:
            continue
        save = None
        if intermediate_states_buffer is not None:
            j = int(intermediate_state_indices[i])
            save = intermediate_states_buffer[j] if j >= 0 else None
        o, state = _delta_rule(
            q[0, s:e], k[0, s:e], v[0, s:e], g[0, s:e], beta[0, s:e],
            initial_state_source[slot].float(), use_qk_l2norm_in_kernel, scale, save,
            parents[i] if parents is not None else None,
        )  # fmt: skip
        out[0, s:e] = o.to(v.dtype)
        if not disable_state_update:
            initial_state_source[slot] = state.to(initial_state_source.dtype)
    return out
