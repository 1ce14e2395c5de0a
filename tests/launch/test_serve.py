"""`sparkserve serve` against a mock engine: ready, dead, taken port, signals, secrets."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.errors import UsageError
from launch.serve import check_port

pytestmark = pytest.mark.suite

ROOT = Path(__file__).resolve().parents[2]
MOCK = Path(__file__).with_name("mock_engine.py")
PRESET = "tiny-w4a4-nodraft"
DEADLINE = 60


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Server:
    """A running `python -m launch serve` with the mock behind it."""

    def __init__(
        self,
        tmp: Path,
        mode: str,
        *args: str,
        preset: str = PRESET,
        port: int | None = None,
        **more_env: str,
    ) -> None:
        fixture = tmp / "fixtures" / "qwen38-w4a4"
        fixture.mkdir(parents=True, exist_ok=True)
        (fixture / "config.json").write_text("{}")
        self.pid_file, self.log = tmp / "pids", tmp / "engine.log"
        self.port = port or free_port()
        env = {
            **os.environ,
            "SPARKSERVE_ENGINE_PYTHON": str(MOCK),
            "SPARKSERVE_FIXTURES": str(tmp / "fixtures"),
            "SPARKSERVE_STATE": str(tmp / "state"),
            "MOCK_ENGINE": mode,
            "MOCK_PIDS": str(self.pid_file),
            **more_env,
        }
        argv = [
            sys.executable,
            "-m",
            "launch",
            "serve",
            preset,
            "--machine",
            "h200",
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(
            [*argv, "--log-file", str(self.log), *args],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.words: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.readers = [
            threading.Thread(
                target=lambda f=self.process.stdout: [self.lines.put(x) for x in f], daemon=True
            ),
            threading.Thread(target=lambda f=self.process.stderr: self.words.extend(f), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def pids(self) -> list[int]:
        return list(json.loads(self.pid_file.read_text()))

    def until_ready(self) -> str:
        return self.line()

    def line(self) -> str:
        return self.lines.get(timeout=DEADLINE)

    def end(self) -> tuple[int, str, str]:
        """Exit code, the lines of stdout not read yet, stderr."""
        code = self.process.wait(timeout=DEADLINE)
        for reader in self.readers:
            reader.join(timeout=DEADLINE)
        return code, "".join(self.lines.queue), "".join(self.words)


@contextlib.contextmanager
def serving(tmp: Path, mode: str, *args: str, **kwargs: object) -> Iterator[Server]:
    server = Server(tmp, mode, *args, **kwargs)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        if server.pid_file.exists():
            for pid in server.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_ready_line_comes_after_a_generation_and_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as server:
        line = server.until_ready()
        assert f"http://127.0.0.1:{server.port}/v1 serves {PRESET}" in line
        assert f"curl http://127.0.0.1:{server.port}/v1/chat/completions" in server.line()
        pids = server.pids()
        assert all(alive(pid) for pid in pids)
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)  # a second signal means now: the child ignores TERM
        code, _, err = server.end()
        assert code == 130
        assert "loading weights" in err
        assert "\ninterrupted; the engine and its children are stopped" in err
        assert not any(alive(pid) for pid in pids)


def test_term_is_an_orderly_stop_and_a_deaf_engine_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "stubborn") as server:
        server.until_ready()
        pids = server.pids()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGHUP)
        code, _, _ = server.end()
        assert code == 0
        assert not any(alive(pid) for pid in pids)


def test_death_at_start_quotes_the_engines_own_error_and_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path, "die") as server:
        code, out, err = server.end()
        assert code == 70, err
        assert out == ""
        error = next(line for line in err.splitlines() if line.startswith("error:"))
        assert "the engine did not start" in error
        assert error.endswith("ValueError: the checkpoint has no scale for layers.3.mlp")
        assert "| [2026-11-30 12:00:00] Load weight end" in err
        assert str(server.log) in err
        assert not any(alive(pid) for pid in server.pids())


def test_death_without_a_word_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, "silent") as server:
        code, _, err = server.end()
        assert code == 70
        assert "exit code 3" in err
        assert "printed nothing" in err


def test_death_while_serving(tmp_path: Path) -> None:
    with serving(tmp_path, "die-ready") as server:
        assert server.until_ready()
        code, _, err = server.end()
        assert code == 70
        assert "died while serving (exit code 9)" in err


def test_no_answer_in_time_ends_the_engine(tmp_path: Path) -> None:
    with serving(tmp_path, "mute", "--boot-timeout", "3") as server:
        code, _, err = server.end()
        assert code == 70
        assert "no token within 3 s" in err
        assert "last phase: weights loaded" in err
        assert not any(alive(pid) for pid in server.pids())


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(tmp_path, "serve", port=port) as server:
            code, _, err = server.end()
        assert code == 2
        assert f"127.0.0.1:{port}" in err
        assert "--port" in err
        assert not server.pid_file.exists()


def test_the_api_key_is_asked_for_and_stands_nowhere(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("s3cret-it's\n")
    key_file.chmod(0o600)
    with serving(tmp_path, "serve", "--api-key-file", str(key_file), "-v") as server:
        line = server.until_ready()  # ready at all: the probe sent the key
        assert "s3cret" not in line
        argv = Path(f"/proc/{server.pids()[0]}/cmdline").read_bytes().decode().split("\0")
        config = Path(argv[argv.index("--config") + 1])
        assert not any("s3cret" in word for word in argv)
        deadline = time.monotonic() + DEADLINE
        while config.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not config.exists()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGHUP)
        _, out, err = server.end()
        for text in (out, err, server.log.read_text()):
            assert "s3cret" not in text
        assert "'api_key': \"***\"" in server.log.read_text()


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "must hold one key"),
        ("two words", 0o600, "must hold one key"),
        ("-dash", 0o600, "starts with a dash"),
        ("fine", 0o644, "chmod 600"),
    ],
)
def test_a_bad_key_file_is_named(tmp_path: Path, content: str | None, mode: int, why: str) -> None:
    key_file = tmp_path / "key"
    if content is not None:
        key_file.write_text(content)
        key_file.chmod(mode)
    with serving(tmp_path, "serve", "--api-key-file", str(key_file)) as server:
        code, _, err = server.end()
    assert code == 78
    assert why in err
    assert len(err.strip().splitlines()) == 1


def test_an_unwritable_log_is_refused_with_its_place(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--log-file", "/proc/none/engine.log") as server:
        code, _, err = server.end()
    assert code == 73
    assert "/proc/none/engine.log" in err
    assert not server.pid_file.exists()


def test_the_engine_goes_when_the_launcher_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as server:
        server.until_ready()
        main = server.pids()[0]
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + DEADLINE
        while alive(main) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(main)


def test_json_ready_line(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--json") as server:
        data = json.loads(server.until_ready())
        assert data["event"] == "ready"
        assert data["url"] == f"http://127.0.0.1:{server.port}"
        assert data["model"] == PRESET


def test_fixtures_not_built_names_the_command_that_builds_them(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", preset="tiny-w4a16-nodraft") as server:
        code, _, err = server.end()
    assert code == 78
    assert "sparkserve fixtures build" in err
    assert not server.pid_file.exists()


HUB_PRESET = """
schema = 1
name = "hub"
title = "T"
status = "experimental"
default_machine = "h200"
target = { repo = "a/b", revision = "0123456789012345678901234567890123456789" }
machine.h200 = {}
"""


def test_hub_checkpoints_are_served_offline_and_only_when_pulled(tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "hub.toml").write_text(HUB_PRESET)
    places = {
        "SPARKSERVE_PRESETS": str(tmp_path / "presets"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "SPARKSERVE_CACHE": str(tmp_path / "cache"),
    }
    with serving(tmp_path, "serve", preset="hub", **places) as server:
        code, _, err = server.end()
    assert code == 78
    assert "run `sparkserve pull hub`" in err
    assert not server.pid_file.exists()
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with serving(tmp_path, "serve", preset="hub", **places) as server:
        assert "serves hub" in server.until_ready()
        environ = Path(f"/proc/{server.pids()[0]}/environ").read_bytes().split(b"\0")
        assert b"HF_HUB_OFFLINE=1" in environ
        server.process.send_signal(signal.SIGTERM)
        code, _, err = server.end()
    assert code == 0
    assert "verifying target a/b" in err


def info(running: int) -> str:
    state = {
        "effective_max_running_requests_per_dp": running,
        "memory_usage": {"token_capacity": 300_000},
        "max_mamba_cache_size": 96,
    }
    return json.dumps({"internal_states": [state], "max_running_requests": running})


def test_engine_that_clamped_in_silence_ends_with_75_and_no_orphan(tmp_path):
    with serving(tmp_path, "serve", MOCK_INFO=info(2)) as server:
        code, _, err = server.end()
        assert code == 75
        assert "2 requests at once instead of 8" in err
        assert not any(alive(p) for p in server.pids())


def test_note_of_a_start_lives_as_long_as_the_server(tmp_path):
    """The engine's figures are in it, and nothing is promised once it answers."""
    with serving(tmp_path, "serve", MOCK_INFO=info(8)) as server:
        assert "ready after" in server.until_ready()
        note = json.loads(next((tmp_path / "state" / "admission").glob("*.json")).read_text())
        figures = {"pool_tokens": 300_000, "running": 8, "state_slots": 96}
        assert figures.items() <= note["realised"].items()
        assert "free_bytes" in note["realised"]
        assert note["promised"] == 0
        server.process.terminate()
        code, _, err = server.end()
        assert code == 0
        assert "admission: not judged: this machine is cpu, not h200" in err
        assert list((tmp_path / "state" / "admission").glob("*.json")) == []


def test_an_address_of_another_machine_is_not_called_a_taken_port() -> None:
    with pytest.raises(
        UsageError, match=r"cannot listen on 192\.0\.2\.1:\d+: .*; give --host an address"
    ) as e:
        check_port("192.0.2.1", free_port())  # TEST-NET-1: nobody's
    assert "another --port" not in str(e.value)
