"""P25: token ids that a client sends as a prompt are refused when they lie outside the vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

VOCAB = 2048

pytestmark = pytest.mark.usefixtures("engine")


def validate(ids: Any, **fields: Any) -> None:
    """The check every request passes in the tokenizer process, on a manager that has only what it reads."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    manager = object.__new__(TokenizerManager)
    manager.model_config = SimpleNamespace(vocab_size=VOCAB)
    manager.context_len, manager.num_reserved_tokens = 4096, 0
    manager.validate_total_tokens, manager.allow_auto_truncate = True, False
    manager.is_generation = True
    manager._validate_joint_schema_request = lambda *_: None
    prompt = {"input_ids": ids} if "text" not in fields else {}
    request = GenerateReqInput(sampling_params={"max_new_tokens": 2}, top_logprobs_num=0, **prompt, **fields)
    manager._validate_one_request(request, ids)


@pytest.mark.parametrize("bad", [VOCAB, 2**31 - 1, -1, "many", None])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_foreign_id_is_refused_with_the_range(bad: Any, place: int) -> None:
    ids: list[Any] = [1, 2]
    ids.insert(place, bad)
    with pytest.raises(ValueError, match=rf"input_ids must be integers in \[0, {VOCAB}\)"):
        validate(ids)


@pytest.mark.guard
@pytest.mark.parametrize("ids", [[0], [VOCAB - 1], [0, 5, VOCAB - 1]])
def test_known_ids_pass(ids: list[int]) -> None:
    validate(ids)


@pytest.mark.guard
def test_ids_of_our_own_tokenizer_are_left_alone() -> None:
    validate([VOCAB + 7], text="a prompt")


@pytest.mark.guard
def test_prompts_with_media_are_left_alone() -> None:
    validate([VOCAB + 7], image_data=["x.png"])
