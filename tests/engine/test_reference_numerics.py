"""The CPU engine's reference code against independent code: ours, transformers', compressed-tensors'."""

from __future__ import annotations

import sys

import pytest

from smoke.cpu_engine.env import SHADOW
from tests.lazy import Lazy

torch, fast, nvfp4 = Lazy("torch"), Lazy("smoke.fixtures.gdn"), Lazy("smoke.fixtures.nvfp4")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def shadow():
    """The plug-in's modules, imported without SGLang; sgl_kernel's by file, so that it stays unshadowed here."""
    import importlib.util

    sys.path.insert(0, str(SHADOW))
    try:
        from sglang_cpu_ref import hooks, quant, spec

        s = importlib.util.spec_from_file_location("cpu_ref_gdn", SHADOW / "sgl_kernel" / "gdn.py")
        gdn = importlib.util.module_from_spec(s)
        s.loader.exec_module(gdn)
        yield type("Shadow", (), {"hooks": hooks, "quant": quant, "spec": spec, "gdn": gdn})
    finally:
        sys.path.remove(str(SHADOW))


@pytest.fixture
def g():
    return torch.Generator().manual_seed(3)


def test_nvfp4_weights(shadow, g):
    w = torch.randn(32, 64, generator=g)
    packed, scale, scale_2 = nvfp4.quantize_nvfp4(w)
    want = nvfp4.dequantize_nvfp4(packed, scale, scale_2)
    torch.testing.assert_close(shadow.quant.dequantize_nvfp4(packed, scale, scale_2), want, rtol=1e-6, atol=0)


def test_fused_parts_keep_their_own_global_scale(shadow):
    rows = shadow.quant.per_row(torch.tensor([1.0, 3.0]), [2, 1])
    assert rows.tolist() == [[1.0], [1.0], [3.0]]
    assert shadow.quant.per_row(torch.tensor([2.0]), [3]).shape == ()


def test_nvfp4_activations_ties_and_clipping_included(shadow, g):
    scale = torch.tensor(0.01)
    x = torch.cat([torch.randn(4, 64, generator=g), torch.full((1, 64), 1e4), torch.zeros(1, 64)])
    x[0, :16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    want = nvfp4.dequantize_nvfp4(*nvfp4.quantize_nvfp4(x, scale))
    torch.testing.assert_close(shadow.quant.round_nvfp4(x, scale), want, rtol=1e-6, atol=1e-6)


def test_wna16_weights_as_compressed_tensors_packs_them(shadow, g):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes = torch.randint(-8, 8, (16, 256), generator=g, dtype=torch.int8)
    scale = torch.rand(16, 2, generator=g) + 0.1
    want = codes.float() * scale.repeat_interleave(128, 1)
    got = shadow.quant.dequantize_wna16(pack_to_int32(codes, 4), scale, 4, 256)
    torch.testing.assert_close(got, want)


def test_packed_heads_refuse_float32_as_the_cuda_op_does(shadow):
    with pytest.raises(TypeError, match=r"fp4_quantize: unsupported input dtype torch\.float32"):
        shadow.quant._apply_fp4(None, torch.nn.Module(), torch.zeros(1, 16))


def inputs(g, t=37, h=2, hv=4, d=16):
    q, k = (torch.randn(1, t, h, d, generator=g) for _ in range(2))
    v = torch.randn(1, t, hv, d, generator=g)
    gate = -torch.rand(1, t, hv, generator=g)
    beta = torch.rand(1, t, hv, generator=g)
    return q, k, v, gate, beta


def test_delta_rule_prefill_equals_the_fixtures_and_transformers(shadow, g):
    from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

    q, k, v, gate, beta = inputs(g)
    state = torch.zeros(1, 4, 16, 16)
    got, _, _ = shadow.gdn.chunk_gated_delta_rule_cpu(
        q, k, v, gate, beta, state, torch.tensor([0, 37]), initial_state_indices=torch.tensor([0])
    )
    wide = [x.repeat_interleave(2, 2) for x in (q, k)]
    for rule in (fast.fast_gated_delta_rule, hf.torch_recurrent_gated_delta_rule):
        want, last = rule(
            *wide,
            v,
            g=gate,
            beta=beta,
            initial_state=None,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state[0], last[0].transpose(-1, -2), rtol=1e-4, atol=1e-5)


def test_convolution_step_by_step_equals_prefill(shadow, g):
    x = torch.randn(6, 9, generator=g)
    weight = torch.randn(6, 4, generator=g)
    states = torch.zeros(2, 6, 3)
    want = shadow.gdn.causal_conv1d_fn(
        x, weight, None, "silu", states, None, torch.tensor([1]), torch.tensor([0, 9])
    )
    steps, windows = torch.zeros(2, 6, 3), torch.zeros(1, 9, 6, 3)
    got = shadow.gdn.causal_conv1d_update(
        x[None], steps, weight, None, "silu", conv_state_indices=torch.tensor([1]),
        intermediate_conv_window=windows, intermediate_state_indices=torch.tensor([0]),
    )  # fmt: skip
    torch.testing.assert_close(got[0], want)
    torch.testing.assert_close(steps, states)
    torch.testing.assert_close(windows[0, 4], x[:, 2:5])


def test_rejection_sampling_accepts_what_the_draft_and_the_target_agree_on(shadow):
    one_hot = torch.eye(4)
    target = one_hot[torch.tensor([[1, 2, 3]])]  # the target says 1, 2, then 3
    for draft, accepted in (([0, 1, 2], 2), ([0, 1, 0], 1), ([0, 3, 2], 0)):
        predicts, index = torch.full((3,), -1), torch.full((1, 3), -1)
        count = torch.zeros(1, dtype=torch.long)
        shadow.spec.chain_speculative_sampling(
            predicts, index, count, torch.tensor([draft]), torch.arange(3)[None], None, None,
            torch.full((1, 2), 0.5), torch.tensor([0.5]), target, one_hot[torch.tensor([draft[1:]])],
        )  # fmt: skip
        assert int(count) == accepted
        assert predicts[: accepted + 1].tolist() == [1, 2, 3][: accepted + 1]


def test_what_moved_in_the_engine_is_named(shadow):
    with pytest.raises(shadow.hooks.MovedError, match=r"json\.no_such_name is not in the installed SGLang"):
        shadow.hooks.put("json", "no_such_name", None)
