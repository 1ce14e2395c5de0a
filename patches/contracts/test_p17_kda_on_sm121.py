"""P17: the KDA GEMMs are offered on SM121 under SGLANG_KDA_ON_SM121, and only then.

The gates are asked with a pretended capability; the kernels are replaced by recorders.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("engine")

M, K, N = 8, 5120, 16384  # the fused linear-attention projection of a DFlash2 verify step


@pytest.fixture
def on(monkeypatch):
    """Set the capability and the switch; forget what the gates remembered."""

    def go(capability: tuple[int, int], switch: str | None) -> None:
        from sglang.kernels.kda_kernels import qwen3x_nvfp4_gemm, sm120_fp8

        if switch is None:
            monkeypatch.delenv("SGLANG_KDA_ON_SM121", raising=False)
        else:
            monkeypatch.setenv("SGLANG_KDA_ON_SM121", switch)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_a, **_k: capability)
        sm120_fp8._device_capability.cache_clear()
        qwen3x_nvfp4_gemm._has_runtime.cache_clear()

    yield go
    from sglang.kernels.kda_kernels import qwen3x_nvfp4_gemm, sm120_fp8

    sm120_fp8._device_capability.cache_clear()
    qwen3x_nvfp4_gemm._has_runtime.cache_clear()


@pytest.fixture
def fp8(monkeypatch):
    """Whether `try_sm120_fp8_linear` would run the KDA kernel at (M, K, N)."""

    def go() -> bool:
        from sglang.kernels.kda_kernels import sm120_fp8, sm120_fp8_skinny_gemm_sm120
        from sglang.kernels.ops.quantization import fp8_kernel

        ran: list[str] = []
        monkeypatch.setattr(sm120_fp8, "_supports_common", lambda *_a: True)
        monkeypatch.setattr(sm120_fp8, "_has_kda_runtime", lambda: True)
        monkeypatch.setattr(fp8_kernel, "static_quant_fp8", lambda x, *_a, **_k: (x, None), raising=False)
        monkeypatch.setattr(
            sm120_fp8_skinny_gemm_sm120,
            "_run_sm120_fp8_skinny_gemm_quantized",
            lambda *_a: ran.append("kda") or torch.zeros(1),
        )
        x, w = torch.empty(M, K, device="meta"), torch.empty(K, N, device="meta")
        out = sm120_fp8.try_sm120_fp8_linear(x, w, torch.ones(1), torch.ones(1))
        assert (out is not None) == bool(ran)
        return bool(ran)

    return go


def nvfp4() -> bool:
    from sglang.kernels.kda_kernels import qwen3x_nvfp4_gemm

    return qwen3x_nvfp4_gemm._has_runtime(torch.device("cpu"))


def skinny_refused() -> bool:
    """Whether the FP8 kernel's own loader turns the device away, before it compiles anything."""
    from sglang.kernels.kda_kernels import sm120_fp8_skinny_gemm_sm120 as skinny

    class Reached(Exception):
        pass

    def load(*_a, **_k):
        raise Reached

    original, skinny.load_jit = skinny.load_jit, load
    try:
        with pytest.raises((Reached, RuntimeError)) as caught:
            skinny._jit_sm120_fp8_skinny_module()
    finally:
        skinny.load_jit = original
    return caught.type is RuntimeError and "SM120" in str(caught.value)


def test_the_switch_offers_them_on_sm121(on, fp8):
    on((12, 1), "1")
    assert fp8()
    assert nvfp4()
    assert not skinny_refused()


@pytest.mark.guard
@pytest.mark.parametrize("switch", [None, "0"])
def test_without_it_sm121_is_as_released(on, fp8, switch):
    on((12, 1), switch)
    assert not fp8()
    assert not nvfp4()
    assert skinny_refused()


@pytest.mark.guard
@pytest.mark.parametrize("switch", [None, "0", "1"])
def test_sm120_has_them_whatever_the_switch(on, fp8, switch):
    on((12, 0), switch)
    assert fp8()
    assert nvfp4()
    assert not skinny_refused()


@pytest.mark.guard
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (11, 0)])
def test_the_switch_offers_them_nowhere_else(on, fp8, capability):
    on(capability, "1")
    assert not fp8()
    assert not nvfp4()
    assert skinny_refused()
