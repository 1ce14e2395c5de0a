"""P22: an explicit `--quantization` is honoured or contradicted loudly, never silently replaced."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as T


@pytest.fixture
def models(tiny: support.TinyModels) -> dict[str, Path]:
    return {
        "mixed": tiny.target("mixed", quant=T.mixed_quant()),
        "nvfp4": tiny.target("nvfp4", quant=T.uniform_nvfp4()),
        "modelopt fp8": tiny.target("modelopt_fp8", quant=T.modelopt_fp8()),
        "block fp8": tiny.target("block_fp8", quant=T.block_fp8()),
        "bf16": tiny.target("bf16"),
    }


def resolve(path: Path, value: str | None, **more: object) -> str | None:
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig(str(path), trust_remote_code=False, quantization=value, **more).quantization


@pytest.mark.parametrize(
    ("checkpoint", "value", "declared"),
    [
        ("mixed", "fp8", "modelopt_mixed"),
        ("mixed", "w4afp8", "modelopt_mixed"),
        ("mixed", "modelopt_fp8", "modelopt_mixed"),
        ("mixed", "nvfp4_online", "modelopt_mixed"),
        ("mixed", "awq", "modelopt_mixed"),
        ("nvfp4", "fp8", "modelopt_fp4"),
        ("nvfp4", "modelopt_fp8", "modelopt_fp4"),
        ("nvfp4", "w4afp8", "modelopt_fp4"),
        ("modelopt fp8", "modelopt_fp4", "modelopt_fp8"),
        ("modelopt fp8", "modelopt_mixed", "modelopt_fp8"),
    ],
)
def test_contradicted_value_is_refused(
    models: dict[str, Path], checkpoint: str, value: str, declared: str
) -> None:
    with pytest.raises(ValueError, match="does not match the quantization") as refused:
        resolve(models[checkpoint], value)
    assert f"({declared})" in str(refused.value)
    assert f"({value})" in str(refused.value)
    assert f"Pass {declared}, or leave the argument out" in str(refused.value)


@pytest.mark.parametrize(
    ("checkpoint", "value", "resolved"),
    [
        ("mixed", "modelopt_fp4", "modelopt_mixed"),  # a command line in use for MIXED NVFP4 checkpoints
        ("nvfp4", "modelopt_mixed", "modelopt_fp4"),
        ("modelopt fp8", "fp8", "modelopt_fp8"),
    ],
)
def test_format_named_for_its_layout_is_served_with_a_warning(
    models: dict[str, Path], caplog: pytest.LogCaptureFixture, checkpoint: str, value: str, resolved: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang.srt.configs.model_config"):
        assert resolve(models[checkpoint], value) == resolved
    said = [r.getMessage() for r in caplog.records if value in r.getMessage()]
    assert any(resolved in text and str(models[checkpoint]) in text for text in said), said


@pytest.mark.usefixtures("engine", "sm121")
@pytest.mark.parametrize("checkpoint", ["mixed", "nvfp4", "block fp8"])
def test_unquant_on_a_quantized_checkpoint_is_refused(models: dict[str, Path], checkpoint: str) -> None:
    with pytest.raises(ValueError, match="--quantization unquant contradicts"):
        from_flags(models[checkpoint], quantization="unquant")


def from_flags(path: Path, **flags: str) -> str | None:
    """The target's quantization as the workers resolve it from ServerArgs."""
    args = support.publish_args(path, **flags)
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(args).quantization


@pytest.mark.usefixtures("engine", "sm121")
def test_flag_on_the_command_line_is_not_replaced(models: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="does not match the quantization"):
        from_flags(models["mixed"], quantization="fp8")


@pytest.mark.guard
@pytest.mark.parametrize(
    ("checkpoint", "value", "resolved"),
    [
        ("mixed", None, "modelopt_mixed"),
        ("mixed", "modelopt", "modelopt_mixed"),
        ("mixed", "modelopt_mixed", "modelopt_mixed"),
        ("mixed", "quark_mxfp4", "quark_mxfp4"),
        ("nvfp4", None, "modelopt_fp4"),
        ("nvfp4", "modelopt", "modelopt_fp4"),
        ("nvfp4", "modelopt_fp4", "modelopt_fp4"),
        ("nvfp4", "quark_mxfp4", "quark_mxfp4"),
        ("modelopt fp8", None, "modelopt_fp8"),
        ("modelopt fp8", "modelopt_fp8", "modelopt_fp8"),
        ("modelopt fp8", "nvfp4_online", "nvfp4_online"),
        ("block fp8", None, "fp8"),
        ("block fp8", "fp8", "fp8"),
        ("block fp8", "modelopt_fp4", "modelopt_fp4"),
        ("block fp8", "nvfp4_online", "nvfp4_online"),
        ("bf16", None, None),
        ("bf16", "fp8", "fp8"),
        ("bf16", "modelopt_fp4", "modelopt_fp4"),
    ],
)
def test_agreeing_values_resolve_as_before(
    models: dict[str, Path], checkpoint: str, value: str | None, resolved: str | None
) -> None:
    assert resolve(models[checkpoint], value) == resolved


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_value_resolved_by_a_model_default_still_yields_to_the_checkpoint(models: dict[str, Path]) -> None:
    """Hooks for DeepSeek-style models resolve a bare `fp8` for NVFP4 files; nobody asked for it."""
    args = support.publish_args(models["nvfp4"])
    from sglang.srt.configs.model_config import ModelConfig

    args._resolved_overrides.append(("a model default", {"quantization": "fp8"}))
    assert ModelConfig.from_server_args(args).quantization == "modelopt_fp4"


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_unquant_on_a_plain_checkpoint_is_unquantized(models: dict[str, Path]) -> None:
    assert from_flags(models["bf16"], quantization="unquant") is None
