"""A model hub on 127.0.0.1 with faults on demand, for the real huggingface_hub client.

It answers what the client asks: model info at a revision, the file tree, and `resolve` with ETag,
X-Repo-Commit, X-Linked-Size/-Etag, Range and HEAD. Repositories are dictionaries of bytes; files over
`lfs_over` bytes are presented as LFS files (SHA-256), the others as git blobs (SHA-1). No xet.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

REV = "0123456789abcdef0123456789abcdef01234567"
REV2 = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Fault:
    """What goes wrong with one file. `times` counts down; a fault with 0 left is over."""

    kind: str  # truncate | wrong-byte | status | drop | stall | trickle | html
    times: int = 1
    at: int = 0  # byte position
    status: int = 503
    retry_after: str | None = None


@dataclass
class MirrorRepo:
    files: dict[str, bytes]
    revision: str = REV
    license: str = "apache-2.0"
    moved_to: str | None = None
    token: str | None = None
    says_commit: str | None = None  # what model info claims: a mirror that answers another commit


@dataclass
class Mirror:
    """State the tests write and read: repositories, faults by path, and what was asked."""

    repos: dict[str, MirrorRepo] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    lfs_over: int = 1000
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    sent: Counter[str] = field(default_factory=Counter)  # body bytes by file
    url: str = ""
    gate: threading.Event = field(default_factory=threading.Event)  # a stalled body goes on when set

    def take(self, path: str, *kinds: str) -> Fault | None:
        fault = self.faults.get(path)
        if fault is None or fault.kind not in kinds or fault.times <= 0:
            return None
        fault.times -= 1
        return fault

    def gets(self, path: str) -> list[str | None]:
        """The Range headers of every GET of a file."""
        return [r for m, p, r in self.requests if m == "GET" and p.endswith("/" + path) and "/resolve/" in p]


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def app(m: Mirror) -> Starlette:
    def error(status: int, code: str, text: str) -> Response:
        return JSONResponse({"error": text}, status, {"X-Error-Code": code, "X-Error-Message": text})

    def find(request: Request) -> tuple[str, MirrorRepo] | Response:
        p = request.path_params
        name = f"{p['org']}/{p['name']}"
        m.requests.append((request.method, request.url.path, request.headers.get("range")))
        repo = m.repos.get(name)
        if repo is None:
            return error(404, "RepoNotFound", "Repository not found")
        if repo.token and request.headers.get("authorization") != f"Bearer {repo.token}":
            return error(401, "GatedRepo", "Access to this model is restricted")
        if repo.moved_to:
            return RedirectResponse(str(request.url.path).replace(name, repo.moved_to, 1), 307)
        if (fault := m.take("*api*", "status")) and "/api/" in request.url.path:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return JSONResponse({"error": "busy"}, fault.status, headers)
        if m.take("*api*", "html") and "/api/" in request.url.path:
            return Response("<html>please log in</html>", media_type="text/html")
        if p["revision"] != repo.revision:
            return error(404, "RevisionNotFound", f"Invalid rev id: {p['revision']}")
        return name, repo

    async def info(request: Request) -> Response:
        got = find(request)
        if isinstance(got, Response):
            return got
        name, repo = got
        siblings = [{"rfilename": f} for f in repo.files]
        return JSONResponse(
            {"id": name, "modelId": name, "sha": repo.says_commit or repo.revision, "private": False, "gated": False,
             "tags": [], "siblings": siblings, "cardData": {"license": repo.license}, "downloads": 0, "likes": 0}
        )  # fmt: skip

    async def tree(request: Request) -> Response:
        got = find(request)
        if isinstance(got, Response):
            return got
        out = []
        for path, data in got[1].files.items():
            item = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
            if len(data) > m.lfs_over:
                sha = hashlib.sha256(data).hexdigest()
                item["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 134}
            out.append(item)
        return JSONResponse(out)

    async def resolve(request: Request) -> Response:
        got = find(request)
        if isinstance(got, Response):
            return got
        _, repo = got
        path = request.path_params["path"]
        data = repo.files.get(path)
        if data is None:
            return error(404, "EntryNotFound", "Entry not found")
        etag = hashlib.sha256(data).hexdigest() if len(data) > m.lfs_over else blob_id(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repo.revision, "Accept-Ranges": "bytes",
                   "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag}"'}  # fmt: skip
        if request.method == "HEAD":
            return Response(headers={**headers, "Content-Length": str(len(data))})
        if fault := m.take(path, "status"):
            extra = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return JSONResponse({"error": "busy"}, fault.status, extra)
        if m.take(path, "wrong-byte"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        if (fault := m.faults.get(path)) and fault.kind == "truncate" and fault.times > 0:
            data = data[: fault.at]
        start, status = 0, 200
        if rng := request.headers.get("range"):
            first, _, last = rng.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) if last else len(data) - 1
            if start >= len(data):
                return Response(status_code=416, headers={"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{min(end, len(data) - 1)}/{len(data)}"
            data, status = data[start : end + 1], 206
        headers["Content-Length"] = str(len(data))
        return StreamingResponse(body(path, data, start), status, headers)

    async def body(path: str, data: bytes, start: int) -> AsyncIterator[bytes]:
        drop, stall, slow = m.take(path, "drop"), m.take(path, "stall"), m.take(path, "trickle")
        step = 1024 if slow else 16384
        for i in range(0, len(data), step):
            if drop and start + i >= drop.at:
                raise ConnectionResetError("dropped on purpose")
            if stall and start + i >= stall.at:
                while not m.gate.is_set():
                    await asyncio.sleep(0.01)
            if slow:
                await asyncio.sleep(0)
            chunk = data[i : i + step]
            m.sent[path] += len(chunk)
            yield chunk

    return Starlette(
        routes=[
            Route("/api/models/{org}/{name}/revision/{revision:path}", info),
            Route("/api/models/{org}/{name}/tree/{revision}", tree),
            Route("/{org}/{name}/resolve/{revision}/{path:path}", resolve, methods=["GET", "HEAD"]),
        ]
    )


@contextmanager
def serve(m: Mirror) -> Iterator[Mirror]:
    """Run the mirror in a thread on a free port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    config = uvicorn.Config(app(m), log_level="critical", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    m.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        yield m
    finally:
        m.gate.set()
        server.should_exit = True
        thread.join(10)
        sock.close()
