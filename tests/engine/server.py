"""Boot the real SGLang server on the CPU engine, talk to it, end it with everything it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from smoke.cpu_engine.env import engine_args, engine_env

REPO = Path(__file__).resolve().parents[2]
BOOT_S = 420  # an idle machine needs 30 to 45 s; a shared one several times that
PARSERS = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
PARIS = " Paris"


def fixture_root() -> Path:
    """Where the core fixtures are, built when absent ($SPARKSERVE_FIXTURES, else build/fixtures)."""
    from smoke.fixtures.__main__ import default_root

    root = default_root()
    r = subprocess.run(
        [sys.executable, "-m", "smoke.fixtures", "build", str(root)],
        check=False, cwd=REPO, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if r.returncode:
        raise RuntimeError(
            f"building fixtures failed ({r.returncode}):\n{r.stdout[-2000:]}\n{r.stderr[-4000:]}"
        )
    return root


def draft_args(draft: Path | None) -> list[str]:
    """Flags for a draft; its quantization is always said."""
    if draft is None:
        return []
    return [
        "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(draft),
        "--speculative-draft-model-quantization", "unquant",
    ]  # fmt: skip


class Server:
    """A server in its own process group; `with Server(...) as s` waits until it answers."""

    def __init__(self, model: Path, log: Path, *args: str) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = log
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=180)
        self.argv = [
            sys.executable, "-m", "sglang.launch_server", *engine_args(model),
            "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "default",
            "--enable-metrics", *PARSERS, *args,
        ]  # fmt: skip

    def __enter__(self) -> Server:
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.argv, stdout=out, stderr=subprocess.STDOUT, env=engine_env(), start_new_session=True
            )
        deadline = time.monotonic() + BOOT_S
        try:
            while not self._ready():
                if self.process.poll() is not None:
                    raise RuntimeError(f"the server exited with {self.process.returncode}\n{self.tail()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the server was not ready after {BOOT_S} s\n{self.tail()}")
                time.sleep(0.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for sig, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(self.process.pid, sig)
            except ProcessLookupError:
                break
            end = time.monotonic() + wait_s
            while time.monotonic() < end and self._group_lives():
                time.sleep(0.1)
        self.process.wait(timeout=20)
        self.http.close()

    def _group_lives(self) -> bool:
        self.process.poll()  # reap the leader, or it stays in the group as a zombie
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _ready(self) -> bool:
        if b"The server is fired up" not in self.log.read_bytes():
            return False
        try:
            return self.http.get("/health", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def tail(self, lines: int = 60) -> str:
        """The end of the server's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])

    # ------------------------------------------------------------------ requests
    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        r = self.http.post(path, json=body)
        assert r.status_code == 200, f"{path}: {r.status_code} {r.text[:400]}\n{self.tail(20)}"
        return dict(r.json())

    def generate(self, prompt: str | list[int], n: int = 16, **kw: Any) -> dict[str, Any]:
        """Greedy, EOS ignored, unless `sampling` says otherwise."""
        sampling = {"max_new_tokens": n, "temperature": 0, "ignore_eos": True, **kw.pop("sampling", {})}
        key = "text" if isinstance(prompt, str) else "input_ids"
        return self.post("/generate", {key: prompt, "sampling_params": sampling, **kw})

    def chat(
        self, content: str = "What is the weather in Paris?", *, thinking: bool = False, **kw: Any
    ) -> dict[str, Any]:
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 64,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": thinking},
            **kw,
        }
        return self.post("/v1/chat/completions", body)

    def running(self) -> float:
        """Requests in the running batch, from the metrics."""
        values = [
            float(line.split()[-1])
            for line in self.http.get("/metrics").text.splitlines()
            if line.startswith("sglang:num_running_reqs{")
        ]
        assert values, "the server has no sglang:num_running_reqs"
        return max(values)
