"""A small client of SGLang's HTTP interface, made to look at answers closely rather than to be convenient."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from smoke.engine.metrics import Metrics, parse_metrics
from smoke.errors import CheckFailed

NO_THINK: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass
class Stream:
    """A chat stream put together again. `ttft` and `total` in seconds; `gap` is the longest silence between events."""

    text: str = ""
    reasoning: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    fragments: int = 0  # events that carried a piece of a tool call's arguments
    usage: dict[str, Any] | None = None
    finish: str | None = None
    done: bool = False
    events: int = 0
    ttft: float = 0.0
    total: float = 0.0
    gap: float = 0.0


@dataclass(frozen=True)
class Generation:
    """An answer of /generate."""

    text: str
    ids: list[int]
    meta: dict[str, Any]

    @property
    def made(self) -> int:
        return int(self.meta["completion_tokens"])


class Engine:
    """Speaks to one server. Raises CheckFailed (ident `http.*`) when an answer is not what HTTP 200 promises."""

    def __init__(
        self, url: str, api_key: str | None = None, model: str = "default", timeout: float = 120.0
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.api_key = api_key
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.http = httpx.Client(base_url=self.url, headers=self.headers, timeout=timeout)

    def close(self) -> None:
        self.http.close()

    def request(self, method: str, path: str, **kw: Any) -> httpx.Response:
        """Any status comes back; a connection that breaks is a failed check."""
        try:
            return self.http.request(method, path, **kw)
        except httpx.TimeoutException as e:
            raise CheckFailed(
                "http.time",
                f"{method} {path} did not answer in time ({type(e).__name__})",
                "look for a wedged scheduler in the engine's log",
            ) from e
        except httpx.HTTPError as e:
            raise CheckFailed(
                "http.broken",
                f"{method} {path} broke off ({type(e).__name__}: {e})",
                "the engine probably died: read its log's tail",
            ) from e

    def json(self, method: str, path: str, **kw: Any) -> Any:
        r = self.request(method, path, **kw)
        if r.status_code != 200:
            raise CheckFailed(
                "http.status",
                f"{method} {path} answered {r.status_code}: {r.text[:300]}",
                "the request is valid: look for the reason in the engine's log",
            )
        try:
            return r.json()
        except ValueError as e:
            raise CheckFailed(
                "http.body",
                f"{method} {path} answered 200 with something that is not JSON: {r.text[:120]!r}",
                "is there a proxy in between?",
            ) from e

    def _chat_body(self, messages: Sequence[dict[str, Any]] | str, kw: dict[str, Any]) -> dict[str, Any]:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {"model": self.model, "messages": list(messages), "max_tokens": 64, "temperature": 0} | kw

    def chat(self, messages: Sequence[dict[str, Any]] | str, **kw: Any) -> dict[str, Any]:
        return self.json("POST", "/v1/chat/completions", json=self._chat_body(messages, kw))  # type: ignore[no-any-return]

    def chat_raw(self, messages: Sequence[dict[str, Any]] | str, **kw: Any) -> httpx.Response:
        return self.request("POST", "/v1/chat/completions", json=self._chat_body(messages, kw))

    def stream(self, messages: Sequence[dict[str, Any]] | str, **kw: Any) -> Stream:
        body = self._chat_body(messages, kw) | {"stream": True, "stream_options": {"include_usage": True}}
        out, begun = Stream(), time.perf_counter()
        last = begun
        with self._open("/v1/chat/completions", body) as lines:
            for data in lines:
                now = time.perf_counter()
                out.gap, last = max(out.gap, now - last), now
                if data == "[DONE]":
                    out.done = True
                    break
                if out.events == 0:
                    out.ttft = now - begun
                out.events += 1
                _absorb(out, json.loads(data))
        out.total = time.perf_counter() - begun
        return out

    @contextlib.contextmanager
    def _open(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        try:
            with self.http.stream("POST", path, json=body) as r:
                if r.status_code != 200:
                    text = r.read().decode(errors="replace")
                    raise CheckFailed(
                        "http.status",
                        f"POST {path} (stream) answered {r.status_code}: {text[:300]}",
                        "the request is valid: look for the reason in the engine's log",
                    )
                yield (ln[6:] for ln in r.iter_lines() if ln.startswith("data: "))
        except httpx.HTTPError as e:
            raise CheckFailed(
                "http.broken",
                f"the stream of {path} broke off ({type(e).__name__}: {e})",
                "the engine probably died: read its log's tail",
            ) from e

    def completion(self, prompt: str, **kw: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0} | kw
        return self.json("POST", "/v1/completions", json=body)  # type: ignore[no-any-return]

    def generate(
        self, prompt: str | list[int], tokens: int, timeout: float | None = None, **kw: Any
    ) -> Generation:
        """/generate, greedy and to the full length unless `sampling` says otherwise."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True} | kw.pop("sampling", {})
        body = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        extra = {} if timeout is None else {"timeout": timeout}
        d = self.json("POST", "/generate", json=body | {"sampling_params": sampling} | kw, **extra)
        return Generation(d.get("text", ""), list(d.get("output_ids") or []), d["meta_info"])

    def timed(self, prompt: str | list[int], tokens: int, timeout: float) -> tuple[Generation, float, float]:
        """(generation, seconds to the first token, seconds in all), streamed so that the first token shows."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        begun, first, text = time.perf_counter(), 0.0, ""
        try:
            with self.http.stream(
                "POST",
                "/generate",
                json=body | {"sampling_params": sampling, "stream": True},
                timeout=timeout,
            ) as r:
                if r.status_code != 200:
                    raise CheckFailed(
                        "http.status",
                        f"/generate answered {r.status_code}: {r.read().decode()[:300]}",
                        "if the prompt is too long for this server, scale the profile down",
                    )
                for ln in r.iter_lines():
                    if not ln.startswith("data: ") or ln == "data: [DONE]":
                        continue
                    text = ln[6:]
                    # Each event repeats the whole answer: parsing all of them would be most of the work here.
                    if not first and json.loads(text).get("meta_info", {}).get("completion_tokens"):
                        first = time.perf_counter() - begun
        except httpx.HTTPError as e:
            raise CheckFailed(
                "http.broken",
                f"the stream of /generate broke off ({type(e).__name__}: {e})",
                "the engine probably died, or the deadline passed: read its log's tail",
            ) from e
        last = json.loads(text) if text else {}
        if "meta_info" not in last:
            raise CheckFailed(
                "http.body",
                f"the stream of /generate ended without a result: {str(last)[:200]}",
                "read the engine's log",
            )
        g = Generation(last.get("text", ""), list(last.get("output_ids") or []), last["meta_info"])
        return g, first, time.perf_counter() - begun

    def tokenize(self, text: str) -> list[int]:
        d = self.json(
            "POST", "/tokenize", json={"model": self.model, "prompt": text, "add_special_tokens": False}
        )
        return [int(t) for t in d["tokens"]]

    def server_info(self) -> dict[str, Any] | None:
        """/server_info, or its older name. None when neither answers."""
        for path in ("/server_info", "/get_server_info"):
            r = self.request("GET", path)
            if r.status_code == 200:
                with contextlib.suppress(ValueError):
                    return dict(r.json())
        return None

    def metrics(self) -> Metrics | None:
        r = self.request("GET", "/metrics", follow_redirects=True)
        return parse_metrics(r.text) if r.status_code == 200 else None


def _absorb(out: Stream, event: dict[str, Any]) -> None:
    if event.get("usage"):
        out.usage = event["usage"]
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        out.text += delta.get("content") or ""
        out.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        out.finish = choice.get("finish_reason") or out.finish
        for call in delta.get("tool_calls") or []:
            while len(out.tools) <= int(call.get("index") or 0):
                out.tools.append({"name": "", "arguments": ""})
            slot, fn = out.tools[int(call.get("index") or 0)], call.get("function") or {}
            slot["name"] += fn.get("name") or ""
            if fn.get("arguments"):
                slot["arguments"] += fn["arguments"]
                out.fragments += 1
