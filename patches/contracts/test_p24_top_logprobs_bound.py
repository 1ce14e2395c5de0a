"""P24: a `top_logprobs_num` beyond the vocabulary is refused before it reaches the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

VOCAB = 2048

pytestmark = pytest.mark.usefixtures("engine")


def validate(top: Any) -> None:
    """The check every request passes in the tokenizer process, on a manager that has only what it reads."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    manager = object.__new__(TokenizerManager)
    manager.model_config = SimpleNamespace(vocab_size=VOCAB)
    manager.context_len, manager.num_reserved_tokens = 4096, 0
    manager.validate_total_tokens, manager.allow_auto_truncate = True, False
    manager.is_generation = True
    manager._validate_joint_schema_request = lambda *_: None
    request = GenerateReqInput(
        input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 2}, return_logprob=True, top_logprobs_num=top
    )
    manager._validate_one_request(request, [1, 2, 3])


@pytest.mark.parametrize("top", [VOCAB + 1, 10**6, -1, 2.5, "many"])
def test_out_of_range_is_refused_with_the_range(top: Any) -> None:
    with pytest.raises(ValueError, match=rf"top_logprobs_num must be an integer in \[0, {VOCAB}\]"):
        validate(top)


@pytest.mark.guard
@pytest.mark.parametrize("top", [None, 0, 1, 20, VOCAB])
def test_in_range_passes(top: Any) -> None:
    validate(top)
