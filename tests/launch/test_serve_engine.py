"""`sparkserve serve` with the real engine on the CPU: ready, key, stop. Minutes."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.engine.server import fixture_root

ROOT = Path(__file__).resolve().parents[2]
KEY = "launch-test-key"


def processes_with(text: str) -> list[int]:
    """Processes whose command line holds `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if text.encode() in words and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


def group_of(leader: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            found.append(int(entry.parent.name))
    return found


@pytest.mark.engine
def test_the_real_engine_takes_the_key_from_a_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    key_file, log = tmp_path / "key", tmp_path / "engine.log"
    key_file.write_text(KEY + "\n")
    key_file.chmod(0o600)
    env = {**os.environ, "SPARKSERVE_FIXTURES": str(fixture_root())}
    argv = [
        sys.executable,
        "-m",
        "launch",
        "serve",
        "tiny-w4a4-dflash2",
        "--machine",
        "cpu",
        "--port",
        str(port),
    ]
    server = subprocess.Popen(
        [*argv, "--api-key-file", str(key_file), "--log-file", str(log), "--boot-timeout", "900"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    assert server.stdout is not None
    out = server.stdout

    def read() -> None:
        for line in out:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        assert "ready after" in lines.get(timeout=960), log.read_text()[-3000:]
        body = {
            "model": "tiny-w4a4-dflash2",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "max_tokens": 32,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert httpx.post(url, json=body, timeout=120, trust_env=False).status_code == 401
        reply = httpx.post(
            url, json=body, timeout=120, trust_env=False, headers={"Authorization": f"Bearer {KEY}"}
        )
        answer = reply.json()["choices"][0]["message"]["content"]
        assert answer.strip() == "Hello! How can I help you today?"
        assert processes_with(KEY) == []
        main = next(p for p in processes_with(f"--port\0{port}") if p != server.pid)
        members = group_of(main)
        assert len(members) >= 3, "main, scheduler, detokenizer"
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 130
        assert group_of(main) == []
        text = log.read_text()
        assert KEY not in text
        assert "'api_key': '***'" in text, "the engine no longer prints its key; drop the redaction's test"
        assert "crashed" not in text
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            server.wait(120)
