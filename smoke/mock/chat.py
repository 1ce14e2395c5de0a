"""/v1/chat/completions, /v1/completions and /v1/messages of the mock."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from smoke.mock.generate import error
from smoke.mock.model import THOUGHT, answer, example, logprob
from smoke.mock.state import State

Message = dict[str, Any]
MODEL = "mock"


class Chat:
    def __init__(self, state: State) -> None:
        self.s = state

    async def route(self, request: Request) -> Response:
        s, b = self.s, await request.json()
        if not s.alive:
            return error(503, "dead")
        if refusal := self._refuse(b):
            return refusal
        await asyncio.sleep(0)
        message, finish = self._message(b)
        usage = self._usage(b, message)
        if b.get("stream"):
            return StreamingResponse(self._stream(b, message, finish, usage), media_type="text/event-stream")
        n = 1 if s.has("one-choice") else int(b.get("n") or 1)
        choice: dict[str, Any] = {"message": message, "finish_reason": finish}
        if b.get("logprobs"):
            choice["logprobs"] = {"content": self._logprobs(b)}
        choices = [{"index": i, **choice} for i in range(n)]
        return JSONResponse(
            {"id": "mock", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices}
            | usage
        )

    def _refuse(self, b: dict[str, Any]) -> Response | None:
        s, roles = self.s, [m.get("role") for m in b.get("messages") or []]
        if b.get("n") == 129:
            if s.has("hostile-kills"):
                s.alive = False
            if s.has("hostile-drops"):
                return Response(b"{", headers={"content-length": "99"})  # uvicorn then drops the connection
            return error(400, "n must be at most 128")
        if not roles or not set(roles) <= {"system", "user", "assistant", "tool"} or (b.get("n") or 1) < 1:
            return error(400, "bad messages")
        if b.get("top_logprobs", 0) > 20 or b.get("max_tokens", 1) < 0 or b.get("temperature", 0) < 0:
            return error(400, "out of range")
        if s.has("system-refused") and "system" in roles[1:]:
            return error(400, "System message must be at the beginning.")
        if s.has("tool-turn-400") and "tool" in roles:
            return error(400, "unexpected role tool")
        if s.has("effort-max-400") and b.get("reasoning_effort") == "max":
            return error(400, "reasoning_effort must be low, medium or high")
        schema = ((b.get("response_format") or {}).get("json_schema") or {}).get("schema")
        if schema is not None and schema.get("type") not in ("object", "array"):
            s.grammar_broken = s.has("bad-schema-sticks")
            return error(500 if s.has("bad-schema-500") else 400, "Failed to compile the grammar")
        return None

    def _thinks(self, b: dict[str, Any]) -> bool:
        on = (b.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        return bool(on) and b.get("reasoning_effort") != "none"

    def _message(self, b: dict[str, Any]) -> tuple[Message, str]:
        s = self.s
        if (calls := self._calls(b)) is not None:
            finish = "stop" if s.has("tool-finish-stop") else "tool_calls"
            return {"role": "assistant", "content": None, "tool_calls": calls}, finish
        text = self._text(b)
        m: Message = {"role": "assistant", "content": text, "tool_calls": None}
        if self._thinks(b) and not s.has("thoughts-lost"):
            m["reasoning_content"] = THOUGHT
            if s.has("think-tags-leak"):
                m["content"] = "</think>" + text
        elif s.has("thinks-anyway"):
            m["reasoning_content"] = THOUGHT
        if s.has("effort-low-empty") and b.get("reasoning_effort") == "low":
            m |= {"content": "", "reasoning_content": ""}
        if s.has("role-missing"):
            m["role"] = "assistent"
        finish = "length" if b.get("ignore_eos") and not s.has("finish-stop") else "stop"
        return self._stopped(b, m), finish

    def _text(self, b: dict[str, Any]) -> str:
        s = self.s
        s.enter(0)
        s.requests += 1
        if s.grammar_broken or s.has("empty-answers") or (s.has("empty-after-restart") and s.restarts):
            return ""
        if s.has("starves-beside") and s.running and not s.starved:
            s.starved = True  # once: the engine hears of the closed stream only a little later
            return ""
        if fmt := (b.get("response_format") or {}).get("json_schema"):
            value = json.dumps(example(fmt["schema"]))
            sampled = b.get("temperature", 1) > 0 and s.has("schema-broken-sampled")
            streamed = b.get("stream") and s.has("schema-broken-streamed")
            return value[:-1] if s.has("schema-ignored") or sampled or streamed else value
        if b.get("regex"):
            return "no" if s.has("regex-ignored") else "123-ab"
        text = answer(b["messages"], s.planted)
        if s.has("forgets-the-middle") and re.fullmatch(r"[0-9-]+", text):
            hay = b["messages"][-1]["content"]
            if 0.3 < hay.index("blue vault is") / len(hay) < 0.7:
                return "I do not know."
        if s.has("bang-answers") or (s.has("sampled-garbage") and b.get("temperature", 0) > 0):
            return "!" * 40
        if s.has("answers-drift") or (s.has("other-after-restart") and s.boots > 1):
            text += f" {s.requests}"
        if s.has("other-answer"):
            text = text.replace("Hello", "Hallo")
        return text + ("<|im_end|>" if s.has("markup-leaks") else "")

    def _stopped(self, b: dict[str, Any], m: Message) -> Message:
        for stop in b.get("stop") or []:
            if stop and stop in m["content"] and not self.s.has("stop-ignored"):
                m["content"] = m["content"].partition(stop)[0]
        return m

    def _calls(self, b: dict[str, Any]) -> list[Message] | None:
        s, choice = self.s, b.get("tool_choice", "auto")
        tools = [t["function"] for t in b.get("tools") or []]
        text = str(b["messages"][-1].get("content") or "")
        if not tools or b["messages"][-1].get("role") == "tool":
            return None
        if choice == "none":
            wanted = tools[:1] if s.has("none-ignored") else []
        elif isinstance(choice, dict):
            name = choice["function"]["name"]
            wanted = [t for t in tools if (t["name"] == name) != s.has("wrong-tool")]
        elif choice == "required":
            wanted = tools if "both" in text and not s.has("one-call") else tools[:1]
        else:
            wanted = [] if s.planted or s.has("tools-ignored") or "weather" not in text else tools[:1]
        if s.has("no-tool-calls") or not wanted:
            return None
        out = []
        for i, t in enumerate(wanted):
            args = json.dumps(example(t.get("parameters") or {}))
            args = args.replace('"days"', '"tage"') if s.has("arguments-broken") else args
            out.append(
                {"id": f"call_{i}", "type": "function", "function": {"name": t["name"], "arguments": args}}
            )
        return out

    def _usage(self, b: dict[str, Any], m: Message) -> dict[str, Any]:
        s = self.s
        if s.has("usage-missing"):
            return {"usage": None}
        prompt = sum(len(s.tokenizer.encode(str(x.get("content") or ""))) + 4 for x in b["messages"])
        made = (
            int(b.get("max_tokens", 16))
            if b.get("ignore_eos")
            else len(s.tokenizer.encode(m["content"] or "x"))
        )
        if s.has("eight-tokens-at-least"):
            made = max(8, made)
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}}

    def _logprobs(self, b: dict[str, Any]) -> list[dict[str, Any]]:
        s, out = self.s, []
        for i in range(int(b.get("max_tokens", 4)) - (1 if s.has("logprobs-short") else 0)):
            lp = float("-inf") if s.has("logprobs-nan") else logprob(i)
            tops = [
                {"token": f"t{i + k + s.has('logprobs-shifted')}", "logprob": logprob(i) - k}
                for k in range(3)
            ]
            out.append({"token": f"t{i}", "logprob": lp if lp > -1e9 else 5.0, "top_logprobs": tops})
        return out

    def _pieces(self, m: Message) -> Iterator[Message]:
        s = self.s
        thought, text = m.get("reasoning_content") or "", m["content"] or ""
        if thought and s.has("thoughts-unsplit-streamed"):
            thought, text = "", f"{thought} {text}"
        yield {"role": m["role"], "content": ""}
        if thought:
            yield {"reasoning_content": thought}
        for call in m.get("tool_calls") or []:
            index, fn = int(call["id"][5:]), call["function"]
            yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function",
                                   "function": {"name": fn["name"], "arguments": ""}}]}  # fmt: skip
            args = fn["arguments"]
            size = len(args) if s.has("arguments-buffered") else 9
            parts = [args[i : i + size] for i in range(0, len(args), size)]
            for part in parts[:-1] if s.has("pieces-lost") else parts:
                yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
        parts = re.findall(r"\S+\s*", text)
        for part in parts[1:] if s.has("chunks-lost") else parts:
            yield {"content": part}

    async def _stream(self, b: dict[str, Any], m: Message, finish: str, usage: Message) -> AsyncIterator[str]:
        base = {"id": "mock", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        for delta in self._pieces(m):
            chunk = base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield f"data: {json.dumps(chunk)}\n\n"
        yield f"data: {json.dumps(base | {'choices': [{'index': 0, 'delta': {}, 'finish_reason': finish}]})}\n\n"
        if (b.get("stream_options") or {}).get("include_usage") and not self.s.has("stream-usage-missing"):
            yield f"data: {json.dumps(base | {'choices': []} | usage)}\n\n"
        if not self.s.has("no-done"):
            yield "data: [DONE]\n\n"

    async def completions(self, request: Request) -> Response:
        b = await request.json()
        text = "" if self.s.has("completions-empty") else " and the tide went out"
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
        return JSONResponse({"id": "mock", "object": "text_completion", "created": 1, "model": b["model"],
                             "choices": [choice]})  # fmt: skip

    async def messages(self, request: Request) -> Response:
        b = await request.json()
        if self.s.has("messages-broken"):
            return error(500, "no adapter")
        content = [{"type": "text", "text": answer(b["messages"], self.s.planted)}]
        return JSONResponse({"id": "m", "type": "message", "role": "assistant", "model": b["model"], "content": content,
                             "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 9}})  # fmt: skip
