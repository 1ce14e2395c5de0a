"""Structured output: strict schemas hold, whole and streamed, and a bad schema harms nobody."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.session import Session

# No maxLength: xgrammar 0.2.7 then lets raw control characters through.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "London", "Oslo"]},
        "celsius": {"type": "integer", "minimum": -50, "maximum": 60},
        "dry": {"type": "boolean"},
        "hours": {
            "type": "array",
            "items": {"type": "string", "enum": ["morning", "noon", "night"]},
            "minItems": 2,
            "maxItems": 3,
        },
        "wind": {
            "type": "object",
            "properties": {
                "from": {"type": "string", "enum": ["north", "south"]},
                "knots": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["from", "knots"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "celsius", "dry", "hours", "wind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
ASK = "Give the weather in Paris as JSON."
MEND = "grammar and speculation must agree on the mask: check the engine version (DFLASH grammars came with #30096)"


def _complaint(text: str) -> str | None:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except ValueError as e:
        return f"not JSON ({e}): {text[:160]!r}"
    except jsonschema.ValidationError as e:
        return f"breaks the schema ({e.message}): {text[:160]!r}"
    return None


def test_strict_schema(s: Session) -> None:
    """A strict JSON schema is kept"""
    c = s.engine.chat(ASK, response_format=FORMAT, max_tokens=300, **NO_THINK)["choices"][0]
    why = _complaint(c["message"].get("content") or "")
    expect("json.schema", why is None, f"the answer is {why}", MEND)


def test_streamed_schema(s: Session) -> None:
    """A strict JSON schema is kept when streamed"""
    why = _complaint(s.engine.stream(ASK, response_format=FORMAT, max_tokens=300, **NO_THINK).text)
    expect("json.streamed", why is None, f"the streamed answer is {why}", MEND)


def test_sampled_schema(s: Session) -> None:
    """A strict JSON schema is kept when sampled"""
    c = s.engine.chat(ASK, response_format=FORMAT, max_tokens=300, temperature=1.0, seed=3, **NO_THINK)[
        "choices"
    ][0]
    why = _complaint(c["message"].get("content") or "")
    expect("json.sampled", why is None, f"the sampled answer is {why}", MEND)


def test_regex(s: Session) -> None:
    """A regular expression is kept"""
    text = s.engine.chat(ASK, regex=r"[0-9]{3}-[a-f]{2}", max_tokens=40, **NO_THINK)["choices"][0]["message"][
        "content"
    ]
    expect(
        "json.regex",
        re.fullmatch(r"[0-9]{3}-[a-f]{2}", text or ""),
        f"a pattern of digits and letters gave {text!r}",
        MEND,
    )


def test_bad_schema(s: Session) -> None:
    """A schema that makes no sense is refused with 4xx, and the next request is answered"""
    bad = {
        "type": "json_schema",
        "json_schema": {"name": "b", "schema": {"type": "nonsense"}, "strict": True},
    }
    r = s.engine.chat_raw(ASK, response_format=bad, max_tokens=8, **NO_THINK)
    expect(
        "json.bad_schema",
        400 <= r.status_code < 500,
        f"answered {r.status_code}: {r.text[:160]}",
        "a client's mistake must be told to the client: 200 hides it, 5xx alarms the operator",
    )
    text = s.engine.chat(ASK, max_tokens=16, **NO_THINK)["choices"][0]["message"].get("content")
    expect("json.after_bad", text, "the request after a bad schema got no text", "read the engine's log")
