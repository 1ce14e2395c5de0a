"""The mock's routes, as an ASGI app."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from smoke.mock import boot
from smoke.mock.chat import MODEL, Chat
from smoke.mock.generate import Generate
from smoke.mock.state import State


def create(s: State, model_path: str = "/models/target") -> Starlette:
    """An app over one state."""

    async def health(_: Request) -> Response:
        green = s.alive or s.has("stays-green")
        return PlainTextResponse("", 503 if s.has("health-503") or not green else 200)

    async def models(_: Request) -> Response:
        ids = [] if s.has("models-empty") else [MODEL]
        return JSONResponse({"object": "list", "data": [{"id": i, "object": "model"} for i in ids]})

    async def info(_: Request) -> Response:
        if s.has("no-server-info"):
            return PlainTextResponse("Not Found", 404)
        return JSONResponse(boot.server_info(s.faults, s.control, model_path))

    async def metrics(_: Request) -> Response:
        return PlainTextResponse("" if s.has("no-metrics") else boot.metrics(s.running))

    async def tokenize(request: Request) -> Response:
        ids = s.tokenizer.encode((await request.json())["prompt"])
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": boot.CONTEXT})

    async def abort(request: Request) -> Response:
        if not s.has("abort-ignored"):
            s.aborted.add((await request.json())["rid"])
        return PlainTextResponse("")

    chat, generate = Chat(s), Generate(s)
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/server_info", info),
            Route("/get_server_info", info),
            Route("/metrics", metrics),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/abort_request", abort, methods=["POST"]),
            Route("/generate", generate.route, methods=["POST"]),
            Route("/v1/chat/completions", chat.route, methods=["POST"]),
            Route("/v1/completions", chat.completions, methods=["POST"]),
            Route("/v1/messages", chat.messages, methods=["POST"]),
        ]
    )
