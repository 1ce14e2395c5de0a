"""P26: a prompt without a single token is refused before it reaches the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("engine")


def validate(ids: list[int] | None, **fields: Any) -> None:
    """The check every request passes in the tokenizer process, on a manager that has only what it reads."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    manager = object.__new__(TokenizerManager)
    manager.model_config = SimpleNamespace(vocab_size=2048)
    manager.context_len, manager.num_reserved_tokens = 4096, 0
    manager.validate_total_tokens, manager.allow_auto_truncate = True, False
    manager.is_generation = True
    manager._validate_joint_schema_request = lambda *_: None
    request = GenerateReqInput(sampling_params={"max_new_tokens": 2}, top_logprobs_num=0, **fields)
    manager._validate_one_request(request, ids)


@pytest.mark.parametrize("text", ["", "\u200b"])
def test_no_tokens_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="The prompt is empty"):
        validate([], text=text)


@pytest.mark.guard
def test_one_token_passes() -> None:
    validate([5], text="a")


@pytest.mark.guard
@pytest.mark.parametrize("fields", [{"image_data": ["x.png"]}, {"audio_data": ["x.wav"]}])
def test_media_bring_tokens_of_their_own(fields: dict[str, Any]) -> None:
    validate([], text="", **fields)


@pytest.mark.guard
def test_embeddings_bring_tokens_of_their_own() -> None:
    validate([], input_embeds=[[0.0, 1.0]])
