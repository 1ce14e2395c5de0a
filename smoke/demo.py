"""`make demo`: serve the fixture checkpoint with its DFlash2 draft, ask it one question, check both answers, stop.

The fixture's weights are planted, so the answer and the acceptance length are known before the engine has run. Exit 0 only
when both came; 1 when the engine answered something else; otherwise what `sparkserve serve` ended with.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai

PRESET = "tiny-w4a4-dflash2"
QUESTION = "What is the weather in Paris?"
ANSWER = "Hello! How can I help you today?"
ACCEPT_LENGTH = 8.0
BOOT_DEADLINE_S = 600
ROOT = Path(__file__).resolve().parents[1]


class DiedAtStartError(RuntimeError):
    """The server ended before it answered; `code` is what it ended with (its own words are on the terminal)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server ended with exit code {code} before it answered")
        self.code = code


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextlib.contextmanager
def served(preset: str, port: int) -> Iterator[str]:
    """`sparkserve serve PRESET` in its own process group, ready to answer; stopped on leaving."""
    argv = [sys.executable, "-m", "launch", "serve", preset, "--port", str(port)]
    server = subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, server)
        yield url
    finally:
        stop(server)


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_DEADLINE_S
    while time.monotonic() < deadline:
        code = server.poll()
        if code is not None:
            raise DiedAtStartError(code)
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url + "/health_generate", timeout=30).status_code == 200:
                return
        time.sleep(0.5)
    raise TimeoutError(f"no answer from {url} within {BOOT_DEADLINE_S} s")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ctrl-C as an operator would; the whole group after a grace time."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def ask(url: str) -> str:
    """One chat question through the OpenAI client, thinking off."""
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
    reply = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=32,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    return reply.choices[0].message.content or ""


def acceptance(url: str) -> float:
    """Mean tokens committed per verify step on a completion that does not end (`meta_info.spec_accept_length`)."""
    body = {"text": " Paris", "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}}
    reply = httpx.post(url + "/generate", json=body, timeout=120).raise_for_status().json()
    return float(reply["meta_info"].get("spec_accept_length", 1.0))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m smoke.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    args = parser.parse_args(argv)
    try:
        with served(PRESET, args.port or free_port()) as url:
            answer, length = ask(url), acceptance(url)
    except DiedAtStartError as e:
        print(f"demo: {e}", file=sys.stderr)
        return e.code
    except TimeoutError as e:
        print(f"demo: {e}", file=sys.stderr)
        return 70
    except KeyboardInterrupt:
        return 130
    except (openai.OpenAIError, httpx.HTTPError) as e:
        print(f"demo: the server did not answer: {e}", file=sys.stderr)
        return 70
    print(f"Question:          {QUESTION}")
    print(f"Answer:            {answer}")
    print(f"Acceptance length: {length:.1f} of {ACCEPT_LENGTH:.1f}")
    wrong = [
        what for what, ok in (("answer", answer == ANSWER), ("acceptance", length == ACCEPT_LENGTH)) if not ok
    ]
    if wrong:
        print(f"demo: wrong {' and '.join(wrong)}: expected {ANSWER!r} and {ACCEPT_LENGTH}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
