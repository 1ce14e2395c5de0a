"""Tool calling: required, named, parallel, streamed, none; and chosen by the model where it can choose."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.session import Session

CITY = {"type": "string", "enum": ["Paris", "London"]}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": CITY,
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {
            "type": "object",
            "properties": {
                "wind": {"type": "string", "enum": ["knots", "kmh"]},
                "round": {"type": "boolean"},
            },
            "required": ["wind", "round"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days", "units"],
    "additionalProperties": False,
}
CLOCK: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
# strict: a non-strict tool is held to "some JSON" only, not to its schema.
TOOLS = [
    {
        "type": "function",
        "function": {"name": n, "description": n.replace("_", " "), "parameters": p, "strict": True},
    }
    for n, p in SCHEMAS.items()
]
ASK = "What is the weather in Paris for the next 3 days? Wind in knots, rounded."
ONE = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 400, **NO_THINK}


def _strip(value: Any) -> Any:
    """The XML form of a call allows white space around values."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        return {k: _strip(v) for k, v in value.items()}
    return value


def _complaint(name: str, arguments: str) -> str | None:
    """What is wrong with a call, or None."""
    if name not in SCHEMAS:
        return f"an unknown tool {name!r} was called"
    try:
        jsonschema.validate(_strip(json.loads(arguments)), SCHEMAS[name])
    except ValueError as e:
        return f"the arguments of {name} are not JSON ({e}): {arguments[:120]!r}"
    except jsonschema.ValidationError as e:
        return f"the arguments of {name} break their schema ({e.message}): {arguments[:120]!r}"
    return None


def _calls(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or []
    ]


MEND = "check the tool-call parser of the preset against the checkpoint's template"


def test_required(s: Session) -> None:
    """tool_choice=required produces a parsed, valid call"""
    c = s.engine.chat(ASK, tool_choice="required", **ONE)["choices"][0]
    calls = _calls(c)
    expect("tools.required", calls, f"no tool call came back, content {c['message'].get('content')!r}", MEND)
    bad = [w for n, a in calls if (w := _complaint(n, a))]
    expect("tools.arguments", not bad, "; ".join(bad), MEND)
    expect(
        "tools.finish",
        c.get("finish_reason") == "tool_calls",
        f"finish_reason is {c.get('finish_reason')!r}",
        "agents look at finish_reason to know that a tool must run",
    )


def test_named(s: Session) -> None:
    """A named tool is the one that is called"""
    choice = {"type": "function", "function": {"name": "get_time"}}
    calls = _calls(s.engine.chat(ASK, tool_choice=choice, **ONE)["choices"][0])
    expect(
        "tools.named",
        [n for n, _ in calls] == ["get_time"] and not _complaint(*calls[0]),
        f"asked for get_time, got {calls}",
        MEND,
    )


def test_streamed(s: Session) -> None:
    """Streamed arguments arrive in pieces that join to the same valid call"""
    st = s.engine.stream(ASK, tool_choice="required", **ONE)
    expect("tools.streamed", st.tools and st.tools[0]["name"], "the stream carried no tool call", MEND)
    bad = [w for t in st.tools if (w := _complaint(t["name"], t["arguments"]))]
    expect("tools.stream_join", not bad, f"the pieces do not join: {'; '.join(bad)}", MEND)
    expect(
        "tools.pieces",
        st.fragments > 1,
        f"the arguments came in {st.fragments} piece(s)",
        "a buffered call looks like a dead stream to clients; the parser must stream",
    )


@pytest.mark.needs("capable")
def test_parallel(s: Session) -> None:
    """Two calls in one turn, when two are asked for"""
    ask = "Call both tools now: the weather in Paris for 2 days (wind knots, rounded) and the time in UTC."
    c = s.engine.chat(ask, tools=TOOLS, tool_choice="required", max_tokens=600, **NO_THINK)["choices"][0]
    names = sorted(n for n, a in _calls(c) if not _complaint(n, a))
    expect(
        "tools.parallel",
        names == ["get_time", "get_weather"],
        f"two valid calls were asked for, got {names}",
        MEND,
    )


@pytest.mark.needs("capable")
def test_auto(s: Session) -> None:
    """tool_choice=auto calls the tool that the question needs"""
    c = s.engine.chat(ASK, tools=TOOLS, max_tokens=600, **NO_THINK)["choices"][0]
    calls = _calls(c)
    expect(
        "tools.auto",
        [n for n, _ in calls] == ["get_weather"] and not _complaint(*calls[0]),
        f"the model should call get_weather, got {calls or c['message'].get('content')!r}",
        MEND,
    )


def test_none(s: Session) -> None:
    """tool_choice=none calls nothing"""
    c = s.engine.chat(ASK, tools=TOOLS, tool_choice="none", max_tokens=48, **NO_THINK)["choices"][0]
    expect("tools.none", not _calls(c), f"tools were forbidden, got {_calls(c)}", MEND)


def test_result_turn(s: Session) -> None:
    """A tool's result is accepted and answered"""
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "get_time", "arguments": '{"zone": "UTC"}'}  # type: ignore[assignment]
    turns = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:30"},
    ]
    r = s.engine.chat_raw(turns, tools=TOOLS, max_tokens=24, **NO_THINK)
    ok = r.status_code == 200 and (r.json()["choices"][0]["message"].get("content") or "").strip()
    expect("tools.result", ok, f"the turn after a tool result answered {r.status_code}: {r.text[:200]}", MEND)
