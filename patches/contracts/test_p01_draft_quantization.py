"""P01: the quantization of a draft is what the operator said, or what its checkpoint declares.

The tables are the specification: (checkpoint, value, explicitly given?) -> resolved value. `None` given
explicitly is what `--speculative-draft-model-quantization unquant` becomes.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from patches.contracts import support
from patches.contracts import tiny_models as T

EXPLICIT, INHERITED = True, False


@pytest.fixture
def models(tiny: support.TinyModels) -> dict[str, Path]:
    return {
        "mixed target": tiny.target("mixed", quant=T.mixed_quant()),
        "nvfp4 target": tiny.target("nvfp4", quant=T.uniform_nvfp4()),
        "bf16 target": tiny.target("bf16"),
        "bf16 draft": tiny.draft("draft"),
        "nvfp4 draft": tiny.draft("draft_nvfp4", quant=T.flat_nvfp4()),
        "int4 draft": tiny.draft("draft_int4", quant=T.compressed_w4a16()),
        "block fp8 draft": tiny.draft("draft_fp8", quant=T.block_fp8()),
        "modelopt fp8 draft": tiny.draft("draft_modelopt_fp8", quant=T.modelopt_fp8()),
        "nvfp4 draft, file": tiny.write(
            "draft_file", T.draft_config(), hf_quant_config={"quantization": T.flat_nvfp4()}
        ),
    }


def resolve(path: Path, value: str | None, explicit: bool) -> str | None:
    """What ModelConfig makes of a draft's quantization."""
    from sglang.srt.configs.model_config import ModelConfig

    config = ModelConfig(
        str(path),
        trust_remote_code=False,
        quantization=value,
        is_draft_model=True,
        is_draft_quantization_explicit=explicit,
        speculative_algorithm="DFLASH",
    )
    return config.quantization


@pytest.mark.parametrize(
    "checkpoint",
    [
        "mixed target",
        "nvfp4 target",
        "nvfp4 draft",
        "int4 draft",
        "block fp8 draft",
        "modelopt fp8 draft",
        "nvfp4 draft, file",
    ],
)
def test_unquant_is_honoured_whatever_the_checkpoint_declares(
    models: dict[str, Path], checkpoint: str
) -> None:
    assert resolve(models[checkpoint], None, EXPLICIT) is None


@pytest.mark.parametrize("value", ["modelopt_fp4", "modelopt_mixed", "modelopt_fp8", "fp8"])
def test_inherited_value_is_not_applied_to_a_plain_draft(models: dict[str, Path], value: str) -> None:
    assert resolve(models["bf16 draft"], value, INHERITED) is None


@pytest.mark.parametrize(
    ("checkpoint", "value", "declared"),
    [
        ("mixed target", "fp8", "modelopt_mixed"),
        ("mixed target", "modelopt_fp8", "modelopt_mixed"),
        ("mixed target", "w4afp8", "modelopt_mixed"),
        ("nvfp4 target", "fp8", "modelopt_fp4"),
        ("nvfp4 draft", "fp8", "modelopt_fp4"),
        ("nvfp4 draft", "modelopt_fp8", "modelopt_fp4"),
        ("nvfp4 draft", "quark_mxfp4", "modelopt_fp4"),
        ("nvfp4 draft, file", "fp8", "modelopt_fp4"),
        ("int4 draft", "fp8", "compressed-tensors"),
        ("int4 draft", "modelopt", "compressed-tensors"),
        ("modelopt fp8 draft", "modelopt_fp4", "modelopt_fp8"),
        ("block fp8 draft", "modelopt_fp8", "fp8"),
    ],
)
def test_contradicted_explicit_value_is_refused(
    models: dict[str, Path], checkpoint: str, value: str, declared: str
) -> None:
    with pytest.raises(ValueError, match="contradicts the draft checkpoint") as refused:
        resolve(models[checkpoint], value, EXPLICIT)
    message = str(refused.value)
    assert str(models[checkpoint]) in message
    assert f"--speculative-draft-model-quantization {value} " in message
    assert f"declares {declared}." in message


@pytest.mark.parametrize(
    ("checkpoint", "value", "resolved"),
    [
        ("mixed target", "modelopt_fp4", "modelopt_mixed"),
        ("nvfp4 draft", "modelopt_mixed", "modelopt_fp4"),
        ("modelopt fp8 draft", "fp8", "modelopt_fp8"),
    ],
)
def test_format_named_for_its_layout_is_served_with_a_warning(
    models: dict[str, Path], caplog: pytest.LogCaptureFixture, checkpoint: str, value: str, resolved: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang.srt.configs.model_config"):
        assert resolve(models[checkpoint], value, EXPLICIT) == resolved
    said = [r.getMessage() for r in caplog.records if value in r.getMessage()]
    assert any(resolved in text and str(models[checkpoint]) in text for text in said), said


@pytest.mark.guard
@pytest.mark.parametrize(
    ("checkpoint", "value", "explicit", "resolved"),
    [
        # No flag anywhere: the checkpoint decides.
        ("mixed target", None, INHERITED, "modelopt_mixed"),
        ("nvfp4 target", None, INHERITED, "modelopt_fp4"),
        ("bf16 draft", None, INHERITED, None),
        ("bf16 draft", None, EXPLICIT, None),
        ("nvfp4 draft", None, INHERITED, "modelopt_fp4"),
        ("nvfp4 draft, file", None, INHERITED, "modelopt_fp4"),
        ("int4 draft", None, INHERITED, "compressed-tensors"),
        ("block fp8 draft", None, INHERITED, "fp8"),
        # Inherited from the target: what the draft declares wins, silently.
        ("nvfp4 draft", "modelopt_mixed", INHERITED, "modelopt_fp4"),
        ("nvfp4 draft", "quark_mxfp4", INHERITED, "modelopt_fp4"),
        ("int4 draft", "modelopt_fp4", INHERITED, "compressed-tensors"),
        ("block fp8 draft", "modelopt_mixed", INHERITED, "fp8"),
        ("block fp8 draft", "modelopt_fp4", INHERITED, "modelopt_fp4"),
        # Explicit, and in agreement.
        ("bf16 draft", "fp8", EXPLICIT, "fp8"),
        ("bf16 draft", "modelopt_fp4", EXPLICIT, "modelopt_fp4"),
        ("nvfp4 draft", "modelopt_fp4", EXPLICIT, "modelopt_fp4"),
        ("nvfp4 draft, file", "modelopt_fp4", EXPLICIT, "modelopt_fp4"),
        ("nvfp4 draft", "modelopt", EXPLICIT, "modelopt_fp4"),
        ("mixed target", "modelopt_mixed", EXPLICIT, "modelopt_mixed"),
        ("mixed target", "nvfp4_online", EXPLICIT, "nvfp4_online"),
        ("nvfp4 target", "nvfp4_online", EXPLICIT, "nvfp4_online"),
        ("block fp8 draft", "fp8", EXPLICIT, "fp8"),
        ("block fp8 draft", "modelopt_fp4", EXPLICIT, "modelopt_fp4"),
        ("modelopt fp8 draft", "nvfp4_online", EXPLICIT, "nvfp4_online"),
    ],
)
def test_agreeing_and_unspecified_values_resolve_as_before(
    models: dict[str, Path], checkpoint: str, value: str | None, explicit: bool, resolved: str | None
) -> None:
    assert resolve(models[checkpoint], value, explicit) == resolved


# --- through the command line's own records ------------------------------------------------------


def draft_quantization(target: Path, draft: Path | None, **flags: str) -> str | None:
    """The draft's quantization as the workers resolve it from ServerArgs."""
    if draft is not None:
        flags["speculative_draft_model_path"] = str(draft)
    args = support.publish_args(
        target, speculative_algorithm="DFLASH" if draft is not None else "NEXTN", **flags
    )
    from sglang.srt.configs.model_config import ModelConfig

    path = str(draft) if draft is not None else None
    return ModelConfig.from_server_args(args, model_path=path, is_draft_model=True).quantization


@pytest.mark.usefixtures("engine", "sm121")
def test_flags_reach_the_draft(models: dict[str, Path]) -> None:
    mixed = models["mixed target"]
    unquant = {"speculative_draft_model_quantization": "unquant"}
    assert draft_quantization(mixed, None, **unquant) is None
    assert draft_quantization(mixed, models["nvfp4 draft"], **unquant) is None
    assert draft_quantization(mixed, models["bf16 draft"], quantization="modelopt_mixed") is None


@pytest.mark.guard
@pytest.mark.usefixtures("engine", "sm121")
def test_mtp_inside_the_target_follows_the_target(models: dict[str, Path]) -> None:
    assert draft_quantization(models["mixed target"], None) == "modelopt_mixed"
    assert draft_quantization(models["mixed target"], None, quantization="modelopt_mixed") == "modelopt_mixed"
    assert draft_quantization(models["bf16 target"], None) is None
    # Online quantization of a bf16 target covers the MTP block of the same checkpoint.
    assert draft_quantization(models["bf16 target"], None, quantization="fp8") == "fp8"
