"""Hostile requests: fields that ended engines before. Each may be refused; none may break the server.

Sources: sglang #33459, #40076, #31597, #34719 (log-probability ceilings, stop ids beyond the vocabulary, n > 128),
and #30096 (grammars under DFLASH).
"""

from __future__ import annotations

from typing import Any

import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import CheckFailed, expect
from smoke.session import Session

HUGE = 2**31 - 1
CHAT: dict[str, dict[str, Any]] = {
    "top_logprobs-1000": {"logprobs": True, "top_logprobs": 1000},
    "top_logprobs-million": {"logprobs": True, "top_logprobs": 10**6},
    "n-129": {"n": 129, "max_tokens": 1},
    "n-0": {"n": 0},
    "max_tokens-negative": {"max_tokens": -1},
    "temperature-negative": {"temperature": -5.0},
    "top_p-zero": {"top_p": 0.0, "temperature": 1.0},
    "top_k-huge": {"top_k": HUGE, "temperature": 1.0},
    "penalty-huge": {"frequency_penalty": 1e30},
    "stop-thousand": {"stop": [f"stop{i}" for i in range(1000)]},
    "stop-empty": {"stop": [""]},
    "logit_bias-beyond": {"logit_bias": {str(HUGE): 100}},
    "role-unknown": {"messages": [{"role": "wizard", "content": "hi"}]},
    "content-null": {"messages": [{"role": "user", "content": None}]},
    "messages-empty": {"messages": []},
    "tool-without-schema": {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
    },
    "schema-deep": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "d", "schema": {"$ref": "#/nowhere"}},
        }
    },
    "regex-broken": {"regex": "((((("},
    "regex-explosive": {"regex": "(a|b|c){1,3000}"},
}
RAW: dict[str, dict[str, Any]] = {
    "stop_token_ids-beyond": {
        "sampling_params": {"max_new_tokens": 4, "stop_token_ids": [HUGE]},
        "text": "hi",
    },
    "logprob_start-beyond": {
        "text": "hi",
        "return_logprob": True,
        "logprob_start_len": 10**6,
        "sampling_params": {"max_new_tokens": 2},
    },
    "logprob_start-negative": {
        "text": "hi",
        "return_logprob": True,
        "logprob_start_len": -50,
        "sampling_params": {"max_new_tokens": 2},
    },
    "top_logprobs_num-huge": {
        "text": "hi",
        "return_logprob": True,
        "top_logprobs_num": 10**6,
        "sampling_params": {"max_new_tokens": 2},
    },
    "input_ids-beyond": {"input_ids": [HUGE], "sampling_params": {"max_new_tokens": 2}},
    "input_ids-negative": {"input_ids": [-1], "sampling_params": {"max_new_tokens": 2}},
    "input_ids-empty": {"input_ids": [], "sampling_params": {"max_new_tokens": 2}},
    "text-empty": {"text": "", "sampling_params": {"max_new_tokens": 2}},
    "text-surrogates": {"text": "\x00\ufffe\U0001f9ff" * 50, "sampling_params": {"max_new_tokens": 2}},
    "min-above-max": {"text": "hi", "sampling_params": {"min_new_tokens": 50, "max_new_tokens": 2}},
}
CASES = [("/v1/chat/completions", k, v) for k, v in CHAT.items()] + [
    ("/generate", k, v) for k, v in RAW.items()
]


@pytest.mark.parametrize(("path", "name", "fields"), CASES, ids=[c[1] for c in CASES])
def test_hostile(s: Session, path: str, name: str, fields: dict[str, Any]) -> None:
    """A hostile field is answered or refused, and the next request is served"""
    body = dict(fields)
    if path != "/generate":
        plain = {
            "model": s.engine.model,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "hi"}],
            **NO_THINK,
        }
        body = plain | body
    try:
        r = s.engine.request("POST", path, json=body, timeout=min(60.0, s.profile.request_s))
        status, text = r.status_code, r.text[:160]
    except CheckFailed as e:
        status, text = 0, e.problem
    alive, why = _alive(s)
    if not alive and s.target.owns:  # so that the fields after this one are judged too
        s.down = f"after {name}"
    expect(
        "hostile.alive",
        alive,
        f"after {name} ({status}) the server does not answer: {why}",
        "put a validating front door before it; this field ends the engine for everybody",
    )
    expect(
        "hostile.answered",
        status != 0,
        f"{name} got no answer: {text}",
        "the connection or a worker was lost although the server lives: read its log",
    )
    if status >= 500:
        s.rec.note(f"hostile field {name} is answered with {status} (an error of the server, but it lives)")


def _alive(s: Session) -> tuple[bool, str]:
    try:
        g = s.engine.generate("The", 3, timeout=min(60.0, s.profile.request_s))
    except CheckFailed as e:
        return False, e.problem
    return g.made == 3, f"{g.made} of 3 tokens"
