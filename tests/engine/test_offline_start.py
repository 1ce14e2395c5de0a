"""From a hub to a served answer with the network gone: pull a pair from the mirror, stop the mirror, serve the preset.

The presets name repositories, not folders, so the engine resolves both checkpoints through the hub cache: the
place where a cache filled by commit used to fail (no refs/main, no listing, a draft revision of `main`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.hub.mirror import REV, REV2, Mirror, MirrorRepo, serve

REPO = Path(__file__).resolve().parents[2]

PRESET = f"""
schema = 1
name = "offline"
extends = "tiny-w4a4-dflash2"
title = "the fixture pair as two hub repositories"
status = "experimental"
default_machine = "cpu"
drop = ["target.fixture", "draft.fixture"]
[target]
repo = "acme/target"
revision = "{REV}"
[draft]
repo = "acme/draft"
revision = "{REV2}"
"""


def folder_files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.engine
def test_a_pulled_preset_serves_with_the_network_gone(fixtures: Path, tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    for file in (REPO / "launch" / "presets").glob("*.toml"):
        (presets / file.name).write_bytes(file.read_bytes())
    (presets / "offline.toml").write_text(PRESET)
    mirror = Mirror(
        repos={
            "acme/target": MirrorRepo(folder_files(fixtures / "qwen38-w4a4")),
            "acme/draft": MirrorRepo(folder_files(fixtures / "dflash2"), revision=REV2),
        }
    )
    env = {
        **{k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "PYTHONDONTWRITEBYTECODE")},
        "SPARKSERVE_PRESETS": str(presets),
        "SPARKSERVE_CACHE": str(tmp_path / "user"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HOME": str(tmp_path / "hf"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPO),
    }
    cli = [sys.executable, "-m", "launch"]
    with serve(mirror):
        pulled = subprocess.run(
            [*cli, "pull", "offline", "--json"], env={**env, "HF_ENDPOINT": mirror.url},
            cwd=REPO, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert pulled.returncode == 0, pulled.stderr
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = (tmp_path / "serve.log").open("w+")
    server = subprocess.Popen(
        [*cli, "serve", "offline", "--port", str(port), "--json", "--boot-timeout", "600"],
        env={**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, cwd=REPO,
        stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        log.seek(0)
        assert line, log.read()[-4000:]
        assert json.loads(line)["event"] == "ready"
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", timeout=180,
            json={"model": "offline", "temperature": 0, "max_tokens": 40,
                  "messages": [{"role": "user", "content": "Hello"}],
                  "chat_template_kwargs": {"enable_thinking": False}},
        ).json()  # fmt: skip
        assert answer["choices"][0]["message"]["content"] == "Hello! How can I help you today?"
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(10)
        log.close()
