"""P04: `--json-model-override-args` (YaRN and the like) describes the target and stays with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patches.contracts import support

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000000,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25,
    "mrope_section": [3, 3, 2],
    "mrope_interleaved": True,
}
FORMS = {
    "flat rope_parameters": {"rope_parameters": YARN},
    "flat rope_scaling": {"rope_scaling": YARN},
    "nested text_config": {"text_config": {"rope_parameters": YARN, "max_position_embeddings": 16384}},
    "flat max_position_embeddings": {"max_position_embeddings": 2048},
}
DRAFT_ENV = "SGLANG_DRAFT_MODEL_OVERRIDE_ARGS"

pytestmark = pytest.mark.usefixtures("engine", "sm121")


def arguments(target: Path, draft: Path | None, overrides: dict[str, Any], **flags: Any) -> Any:
    flags.setdefault("speculative_algorithm", "NEXTN" if draft is None else "DFLASH")
    if draft is not None:
        flags["speculative_draft_model_path"] = str(draft)
        flags["speculative_draft_model_quantization"] = "unquant"
    return support.publish_args(target, json_model_override_args=json.dumps(overrides), **flags)


def target_config(args: Any) -> Any:
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(args)


def draft_config(args: Any, draft: Path | None, **more: Any) -> Any:
    from sglang.srt.configs.model_config import ModelConfig

    path = None if draft is None else str(draft)
    return ModelConfig.from_server_args(args, model_path=path, is_draft_model=True, **more)


def rope(config: Any) -> dict[str, Any]:
    return dict(config.hf_text_config.rope_parameters)


@pytest.mark.parametrize("form", list(FORMS))
def test_separate_draft_keeps_its_own_config(tiny: support.TinyModels, form: str) -> None:
    target, draft = tiny.target(), tiny.draft()
    plain = draft_config(arguments(target, draft, {}), draft)
    config = draft_config(arguments(target, draft, FORMS[form]), draft)
    assert rope(config) == rope(plain)
    assert rope(config)["rope_type"] == "default"
    assert config.context_len == plain.context_len == 4096
    assert config.hf_text_config.hidden_size == 256


def test_draft_keeps_its_rope_in_the_model_that_is_built(tiny: support.TinyModels) -> None:
    target, draft = tiny.target(), tiny.draft()
    model, _, _ = support.build_model(
        arguments(target, draft, FORMS["flat rope_parameters"]), draft_path=draft
    )
    ropes = {type(m).__name__ for m in model.modules() if "RotaryEmbedding" in type(m).__name__}
    assert ropes
    assert not any("YaRN" in name or "Yarn" in name for name in ropes), ropes


def test_block_size_is_still_read_from_the_draft(tiny: support.TinyModels) -> None:
    """A nested override used to break this reading; 16 tokens were then assumed for a block of 8."""
    from sglang.srt.arg_groups.overrides import resolution_result

    args = arguments(tiny.target(), tiny.draft(), {"dflash_config": {"block_size": 4}, "block_size": 4})
    assert resolution_result(args, "speculative_num_draft_tokens") == 8


def test_dspark_draft_is_read_without_the_targets_overrides(tiny: support.TinyModels) -> None:
    draft = tiny.draft(kind="dspark")
    args = arguments(tiny.target(), draft, {"block_size": 4}, speculative_algorithm="DSPARK")
    from sglang.srt.speculative.dspark_components.dspark_config import read_draft_checkpoint_config

    assert read_draft_checkpoint_config(server_args=args).gamma == 8


def test_overrides_for_the_draft_alone(tiny: support.TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to run a draft beyond its native length: its own limit, not the target's scaling."""
    target, draft = tiny.target(), tiny.draft()
    monkeypatch.setenv(DRAFT_ENV, json.dumps({"max_position_embeddings": 16384}))
    args = arguments(target, draft, FORMS["nested text_config"])
    assert target_config(args).context_len == 16384
    config = draft_config(args, draft, context_length=16384)
    assert config.hf_text_config.max_position_embeddings == 16384
    assert rope(config)["rope_type"] == "default"


def test_draft_too_short_for_the_stretched_target_is_refused(tiny: support.TinyModels) -> None:
    target, draft = tiny.target(), tiny.draft()
    args = arguments(target, draft, FORMS["nested text_config"])
    with pytest.raises(ValueError, match=r"context_length \(16384\) is greater than the derived"):
        draft_config(args, draft, context_length=target_config(args).context_len)


@pytest.mark.parametrize("bad", ["{", "[1]", "4"])
def test_malformed_draft_overrides_are_refused(
    tiny: support.TinyModels, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    target, draft = tiny.target(), tiny.draft()
    args = arguments(target, draft, {})
    monkeypatch.setenv(DRAFT_ENV, bad)
    with pytest.raises(ValueError, match=DRAFT_ENV):
        draft_config(args, draft)


@pytest.mark.guard
def test_target_still_takes_its_overrides(tiny: support.TinyModels) -> None:
    target = tiny.target()
    config = target_config(
        support.publish_args(target, json_model_override_args=json.dumps(FORMS["nested text_config"]))
    )
    assert rope(config)["rope_type"] == "yarn"
    assert rope(config)["factor"] == 4.0
    assert config.context_len == 16384


@pytest.mark.guard
@pytest.mark.parametrize("spelled", ["no path", "same path", "same path with a slash"])
def test_draft_inside_the_target_takes_the_targets_overrides(tiny: support.TinyModels, spelled: str) -> None:
    target = tiny.target()
    draft = None if spelled == "no path" else target
    args = arguments(target, None, FORMS["nested text_config"])
    path = None if draft is None else Path(f"{draft}{'/' if 'slash' in spelled else ''}")
    config = draft_config(args, path)
    assert rope(config)["rope_type"] == "yarn"
    assert config.context_len == 16384


@pytest.mark.guard
def test_without_overrides_nothing_moves(tiny: support.TinyModels) -> None:
    target, draft = tiny.target(), tiny.draft()
    args = arguments(target, draft, {})
    assert draft_config(args, draft).model_override_args == {}
    assert target_config(args).model_override_args == {}
