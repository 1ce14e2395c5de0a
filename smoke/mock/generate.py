"""/generate of the mock: greedy walks on the planted cycle, with SGLang's meta_info."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from smoke.mock.boot import CONTEXT
from smoke.mock.model import logprob, walk
from smoke.mock.state import State

DRAFT = 8  # tokens a planted DFlash2 step commits
# Faults that show only in company wait for it this long, so that a busy machine does not hide them.
COMPANY = frozenset(["garbage-in-company", "crossed-in-company", "load-400", "three-is-too-much"])
COMPANY_S = 0.4
PACE = 0.002  # seconds a chunk of 8 tokens takes, once an answer is long


def error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status)


class Generate:
    def __init__(self, state: State) -> None:
        self.s = state

    async def route(self, request: Request) -> Response:
        s = self.s
        body = await request.json()
        s.inside += 1
        try:
            if s.armed and s.faults & COMPANY:
                await asyncio.sleep(COMPANY_S)
            return await self._route(body)
        finally:
            s.inside -= 1

    async def _route(self, body: dict[str, Any]) -> Response:
        s = self.s
        p = body.get("sampling_params") or {}
        n = int(p.get("max_new_tokens", 16))
        ids = body.get("input_ids")
        ids = s.tokenizer.encode(body.get("text") or "") if ids is None else list(ids)
        if not s.alive:
            return error(503, "dead")
        if refusal := self._refuse(body, ids, n):
            return refusal
        if n < 0 or any(not 0 <= i < 10**6 for i in ids) or not ids:
            return error(400, "bad request")
        if len(ids) >= CONTEXT:  # truncates-silently comes here
            ids = ids[: CONTEXT - n - 1]
        if body.get("stream"):
            return StreamingResponse(self._stream(body, ids, n), media_type="text/event-stream")
        return await self._whole(body, ids, n)

    def _refuse(self, body: dict[str, Any], ids: list[int], n: int) -> Response | None:
        s = self.s
        text = (
            "prompt too long" if s.has("refusal-without-figures") else f"{len(ids)} tokens exceed {CONTEXT}"
        )
        if len(ids) >= CONTEXT and not s.has("truncates-silently"):
            return error(400, text)
        if len(ids) + n > CONTEXT - (64 if s.has("edge-dead-zone") else 0) and len(ids) < CONTEXT:
            over = len(ids) + n > CONTEXT
            return error(500, "boom") if s.has("sum-500") and over else error(400, f"sum exceeds {CONTEXT}")
        if s.has("offline-silent") and n == 5:
            return JSONResponse(self._answer(body, ids, n)(n - 1))
        if s.has("load-400") and body.get("stream") and s.inside >= 3:
            return error(400, "busy")
        if s.has("three-is-too-much") and body.get("stream") and s.inside >= 3:
            return error(400, "out of tokens")
        return None

    def _ids(self, ids: list[int], n: int) -> list[int]:
        s = self.s
        out = walk(
            ids[-1], n, 2 if s.has("head-swapped") or (s.control and "control-differs" in s.faults) else 1
        )
        if s.inside > 1 and s.has("garbage-in-company"):
            out = [out[0]] * n
        if s.inside > 1 and s.has("crossed-in-company"):
            out = walk(out[0] + 16, n)
        if s.has("one-token-loops") and s.requests > 3:
            out = [out[0]] * n
        return out

    def _accept(self, ids: list[int]) -> float | None:
        s = self.s
        if s.control or s.has("accept-unreported"):
            return None
        if s.has("accept-one"):
            return 1.0
        if s.has("accept-four"):
            return 4.0
        if s.has("accept-decays") and len(ids) > CONTEXT // 2:
            return 2.0
        if s.has("accept-fades"):
            return max(1.0, 8.0 - s.requests * 0.5)
        return float(DRAFT)

    def _answer(self, body: dict[str, Any], ids: list[int], n: int) -> Any:
        s = self.s
        out, key = self._ids(ids, n), tuple(ids)
        cached = len(ids) - 1 if key in s.seen and not s.has("no-prefix-cache") else 0
        s.seen.add(key)
        accept = self._accept(ids)

        def at(made: int) -> dict[str, Any]:
            if s.has("load-short") and made == n:
                made -= 1
            meta: dict[str, Any] = {
                "id": body.get("rid") or "mock",
                "prompt_tokens": len(ids) + (1 if s.has("prompt-miscounted") else 0),
                "completion_tokens": made,
                "cached_tokens": cached,
                "finish_reason": {"type": "length", "length": n},
            }
            if accept is not None:
                meta |= {"spec_accept_length": accept, "spec_verify_ct": max(1, round(made / accept))}
            if body.get("return_logprob"):
                meta["output_token_logprobs"] = self._logprobs(out[:made])
            return {"text": s.tokenizer.decode(out[:made]), "output_ids": out[:made], "meta_info": meta}

        return at

    def _logprobs(self, out: list[int]) -> list[list[Any]]:
        rows: list[list[Any]] = [[logprob(t), t, None] for t in out]
        if self.s.has("scale-doubled"):
            rows = [[lp - 0.07, t, x] for lp, t, x in rows]
        if self.s.has("state-dropped") and not self.s.control:
            rows = [[lp - 0.02 * (i % 9), t, x] for i, (lp, t, x) in enumerate(rows)]
        if self.s.has("row-shifted") and rows:
            rows[-1][0] -= 0.29
        return rows

    async def _whole(self, body: dict[str, Any], ids: list[int], n: int) -> Response:
        s, rid = self.s, str(body.get("rid") or "")
        s.enter()
        try:
            # Requests that come together must see each other, as they do in a batch.
            await asyncio.sleep(0.01)
            at = self._answer(body, ids, n)
            for made in range(0, n, DRAFT):
                if n > 256:
                    await asyncio.sleep(PACE)
                if rid in s.aborted:
                    return JSONResponse(at(made))
            return JSONResponse(at(n))
        finally:
            s.enter(-1)

    async def _stream(self, body: dict[str, Any], ids: list[int], n: int) -> AsyncIterator[str]:
        s = self.s
        s.enter()
        left = True
        try:
            await asyncio.sleep(0.01)
            at = self._answer(body, ids, n)
            for made in range(min(DRAFT, n), n, DRAFT):
                yield f"data: {json.dumps(at(made))}\n\n"
                # Slow enough that a request beside it surely meets it.
                pace = 25 * PACE if s.has("starves-beside") else PACE
                await asyncio.sleep(pace if n > 256 else 0)
            yield f"data: {json.dumps(at(n))}\n\ndata: [DONE]\n\n"
            left = False
        finally:
            if not (left and s.has("never-cancels")):
                s.enter(-1)
