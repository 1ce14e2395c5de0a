"""The real server on the CPU engine: a ModelOpt NVFP4 target with a DFlash2 draft, driven over HTTP."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from smoke.fixtures import ANSWER, REASONING, cycles, oracle

from .server import PARIS, Server

pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "London"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": SCHEMA}}]


@pytest.fixture(scope="session")
def reference(fixtures) -> dict[str, Any]:
    return oracle.read(fixtures / "qwen38-w4a4")


def wait_until_idle(server: Server, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while server.running():
        assert time.monotonic() < end, f"still running after {seconds} s\n{server.tail(20)}"
        time.sleep(0.1)


def test_chat_says_the_planted_answer(server):
    choice = server.chat()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")


def test_thinking_goes_into_reasoning_content(server):
    message = server.chat(thinking=True)["choices"][0]["message"]
    assert message["reasoning_content"].strip() == REASONING
    assert message["content"].strip() == ANSWER


def test_greedy_completion_is_the_planted_cycle_and_every_draft_token_is_accepted(server, fixtures):
    want, text = cycles.expected(fixtures / "bf16", PARIS, 64)
    got = server.generate(PARIS, 64)
    assert got["output_ids"] == want
    assert got["text"].strip() == text.strip()
    meta = got["meta_info"]
    assert meta["spec_accept_length"] == 8.0
    assert meta["spec_correct_drafts_histogram"] == [0, 0, 0, 0, 0, 0, 0, 8]


def test_log_probabilities_agree_with_the_dequantized_reference(server, reference):
    want, got = [], []
    for p in reference["prompts"]:
        r = server.generate(p["input_ids"], len(p["output_ids"]), return_logprob=True)
        assert r["output_ids"] == p["output_ids"], p["name"]
        want += p["logprobs"]
        got += [x[0] for x in r["meta_info"]["output_token_logprobs"]]
    d = oracle.difference(got, want)
    assert d.within(reference["tolerance"]), oracle.summary(d)
    # The tolerance must tell this engine from a broken one with room to spare.
    assert d.mean_abs < reference["tolerance"]["mean_abs"] / 2


def test_eight_at_once_say_what_each_says_alone(server):
    prompts = [PARIS, " Alice", " key", "Hello", " blue", " London Berlin", " Zoe. What", " The train"]
    alone = [server.generate(p, 32)["output_ids"] for p in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = [r["output_ids"] for r in pool.map(lambda p: server.generate(p, 32), prompts)]
    assert together == alone


def test_json_schema_at_temperature_zero(server):
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
    choice = server.chat(max_tokens=200, response_format=schema)["choices"][0]
    got = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert set(got) == {"city", "days"}
    assert got["city"] in ("Paris", "London")
    assert 1 <= got["days"] <= 9


def test_required_strict_tool_call(server):
    choice = server.chat(max_tokens=400, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)[
        "choices"
    ][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "get_weather"
    assert arguments["city"].strip() in ("Paris", "London")
    assert 1 <= arguments["days"] <= 9


def test_stream_ends_with_usage(server):
    body = {
        "model": "default", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 64,
        "stream": True, "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    with server.http.stream("POST", "/v1/chat/completions", json=body) as r:
        events = [line.removeprefix("data: ") for line in r.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in events[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == ANSWER
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_sampled_request_goes_through_rejection_sampling(server):
    r = server.generate(PARIS, 32, sampling={"temperature": 1.0})
    assert len(r["output_ids"]) == 32
    assert r["meta_info"]["spec_verify_ct"] < 32


def test_abort_frees_the_slot(server):
    wait_until_idle(server)
    result: dict[str, Any] = {}
    thread = threading.Thread(
        target=lambda: result.update(server.generate(PARIS, 3800, rid="to-abort")), name="to-abort"
    )
    thread.start()
    end = time.monotonic() + 30
    while not server.running():
        assert time.monotonic() < end, "the request never ran"
        time.sleep(0.05)
    assert server.http.post("/abort_request", json={"rid": "to-abort"}).status_code == 200
    thread.join(60)
    assert not thread.is_alive()
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert result["meta_info"]["completion_tokens"] < 3800
    wait_until_idle(server)
    assert server.chat()["choices"][0]["message"]["content"] == ANSWER


def test_prompt_longer_than_the_context_is_refused_and_the_server_lives(server):
    r = server.http.post(
        "/generate", json={"input_ids": [100] * 5000, "sampling_params": {"max_new_tokens": 1}}
    )
    assert r.status_code == 400
    assert server.http.get("/health").status_code == 200
