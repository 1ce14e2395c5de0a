"""Targets: the process target owns a process group, the docker target keeps to the image's contract."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import psutil
import pytest

from smoke.errors import CONFIG, SmokeError
from smoke.targets import Boot, NotRun
from smoke.targets import docker as docker_target
from smoke.targets.docker import LABEL, DockerTarget, Run
from smoke.targets.process import ProcessTarget, Start, sparkserve
from smoke.targets.url import UrlTarget

READY = "The server is fired up and ready to roll!"
# Stands in for `sparkserve serve`: a parent with a child that calls itself a scheduler.
PROGRAM = """
import os, sys, time, subprocess
log = open(sys.argv[1], "w")
child = subprocess.Popen(["sglang::scheduler", "-c", "import time; time.sleep(600)"], executable=sys.executable)
print("The server is fired up and ready to roll!", child.pid, file=log, flush=True)
print("launcher speaks", flush=True)
code = child.wait()
sys.exit(70)
"""


def render(start: Start) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-c", PROGRAM, str(start.log)], {}


def until(ok: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not ok():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


@pytest.fixture
def target(tmp_path: Path) -> Any:
    t = ProcessTarget("p", render=render, workdir=tmp_path, stop_s=5)
    yield t
    t.stop()


def test_process_is_stopped_with_all_its_children(target: ProcessTarget) -> None:
    target.start(Boot())
    until(lambda: READY in target.log())
    child = int(target.log().split(READY)[1].split()[0])
    assert target.life().alive is True
    assert target.life().restarts == 0
    assert "launcher speaks" in target.log()
    target.stop()
    until(lambda: not psutil.pid_exists(child))
    assert target.life().alive is False


def test_a_killed_scheduler_ends_the_process_with_its_code(target: ProcessTarget) -> None:
    target.start(Boot())
    until(lambda: READY in target.log())
    target.kill_child()
    until(lambda: target.life().alive is False)
    assert target.life().exit_code == 70


def test_logs_are_kept_only_when_they_are_needed() -> None:
    t = ProcessTarget("p", render=render)
    assert t.tidy(keep=True) == str(t.dir)
    assert t.dir.is_dir()
    assert t.tidy(keep=False) is None
    assert not t.dir.exists()


def test_each_boot_has_a_log_of_its_own(target: ProcessTarget) -> None:
    for _ in range(2):
        target.start(Boot())
        until(lambda: READY in target.log())
    assert target.log().count(READY) == 1
    assert target.boots == 2


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    t = ProcessTarget("p", render=lambda _: (["/nonexistent/python"], {}), workdir=tmp_path)
    with pytest.raises(SmokeError, match="cannot start /nonexistent/python") as e:
        t.start(Boot())
    assert e.value.code == CONFIG


def test_compiled_kernels_are_listed_with_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for var in ("SGLANG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "TVM_FFI_CACHE_DIR"):
        monkeypatch.setenv(var, str(tmp_path / "none"))
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / "deep").mkdir(parents=True)
    (tmp_path / "cache" / "deep" / "topk.so").touch()
    (tmp_path / "cache" / "notes.txt").touch()
    found = ProcessTarget("p", workdir=tmp_path).kernels()
    assert found is not None
    assert [Path(p).name for p in found] == ["topk.so"]


def test_the_words_of_sparkserve_serve(tmp_path: Path) -> None:
    """The command is one that `sparkserve serve` understands: its own parser says so."""
    start = Start("tiny-w4a4-dflash2", 1234, tmp_path / "e.log", Boot(offline=True), "cpu", tmp_path / "key")
    argv, env = sparkserve(start)
    assert argv[1:5] == ["-m", "launch", "serve", "tiny-w4a4-dflash2"]
    assert env["HF_HUB_OFFLINE"] == "1"
    control, _ = sparkserve(Start("a", 1, tmp_path, Boot(control="b")))
    assert "b" in control
    assert "a" not in control

    from typer.testing import CliRunner

    from launch.cli import app

    help_text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for word in argv:
        if word.startswith("--"):
            assert word in help_text


class FakeContainer:
    def __init__(self, state: dict[str, Any], log: str = "") -> None:
        self.image = SimpleNamespace(
            attrs={"RepoDigests": ["sparkserve@sha256:" + "a" * 64]}, id="sha256:b", labels={"x": "y"}
        )
        ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "49155"}]}
        self.attrs = {"State": state, "RestartCount": 0, "NetworkSettings": {"Ports": ports}}
        self.text, self.calls = log, []  # type: tuple[str, list[Any]]
        self.result = SimpleNamespace(exit_code=0, output=b"1700000000.5 /cache/a/topk.so\n")

    def reload(self) -> None: ...

    def logs(self) -> bytes:
        return self.text.encode()

    def stop(self, timeout: int) -> None:
        self.calls.append("stop")

    def remove(self, force: bool, v: bool) -> None:
        self.calls.append("remove")

    def exec_run(self, command: list[str]) -> Any:
        self.calls.append(command)
        return self.result


class FakeDocker:
    def __init__(self, container: FakeContainer | Exception) -> None:
        self.container, self.options = container, {}  # type: tuple[Any, dict[str, Any]]
        self.containers = self.images = self

    def get(self, image: str) -> Any:
        raise docker.errors.ImageNotFound(image)

    def run(self, **options: Any) -> Any:
        if isinstance(self.container, Exception):
            raise self.container
        self.options = options
        return self.container


def started(state: dict[str, Any], log: str = "", **kw: Any) -> tuple[DockerTarget, FakeDocker]:
    client = FakeDocker(FakeContainer(state, log))
    t = DockerTarget("preset", Run("img", **kw), client=client)
    t.start(Boot())
    return t, client


RUNNING = {"Status": "running"}


def test_docker_run_keeps_to_the_contract(tmp_path: Path) -> None:
    t, client = started(RUNNING, hub=tmp_path, mounts=("/a:/b",), arguments=("--machine", "gb10-128"))
    o = client.options
    assert (o["image"], o["command"]) == (
        "img",
        ["preset", "--verbose", "--no-profile", "--machine", "gb10-128"],
    )
    assert o["ports"] == {"30000/tcp": ("127.0.0.1", t.port)}  # loopback only
    assert t.url == f"http://127.0.0.1:{t.port}"
    assert (o["read_only"], o["cap_drop"]) == (True, ["ALL"])
    assert "privileged" not in o
    assert "restart_policy" not in o  # a tripped guard must not run into the same wall
    assert o["labels"][LABEL] == "preset"
    assert o["name"] == f"sparkserve-preset-smoke-{t.port}"
    assert o["device_requests"][0]["Capabilities"] == [["gpu"]]
    assert o["volumes"][str(tmp_path)] == {"bind": "/models", "mode": "ro"}
    assert o["volumes"]["/a"] == {"bind": "/b", "mode": "ro"}
    assert [v["bind"] for v in o["volumes"].values() if v["mode"] == "rw"] == ["/cache"]


def test_docker_without_a_gpu_and_the_other_boots() -> None:
    t, client = started(RUNNING, gpu=False)
    assert "device_requests" not in client.options
    t.start(Boot(control="plain"))
    assert client.options["command"] == ["plain", "--verbose", "--no-profile"]
    t.start(Boot(offline=True))
    assert client.options["environment"]["HF_HUB_OFFLINE"] == "1"
    assert client.options["network_mode"] == "none"
    assert "ports" not in client.options
    t.stop()
    assert client.container.calls.count("remove") == 3  # each start replaces the last one


def test_docker_on_the_hosts_network_and_with_a_key(tmp_path: Path) -> None:
    t, client = started(RUNNING, network="host", key_file=tmp_path / "key", key_group=1234)
    assert client.options["group_add"] == ["1234"]
    assert t.url == "http://127.0.0.1:30000"
    assert "ports" not in client.options
    assert client.options["network_mode"] == "host"
    assert client.options["command"][-2:] == ["--api-key-file", "/run/secrets/api-key"]


@pytest.mark.parametrize(
    ("health", "want"),
    [
        ({"Status": "healthy", "Log": [{"Output": "ready for 3 s"}]}, "ready"),
        (
            {"Status": "unhealthy", "Log": [{"Output": "tripped for 1 s (MemAvailable: not ready)"}]},
            "tripped",
        ),
        ({"Status": "starting", "Log": []}, "loading"),
        ({"Status": "unhealthy", "Log": []}, "wedged"),
        (None, None),
    ],
)
def test_docker_health_is_the_guards_word(health: Any, want: str | None) -> None:
    t, _ = started({**RUNNING, "Health": health})
    assert t.life().health == want


def test_docker_exit_code_and_restarts() -> None:
    t, _ = started({"Status": "exited", "ExitCode": 75}, log=f"{READY}\n{READY}\n")
    life = t.life()
    assert (life.alive, life.exit_code, life.restarts) == (False, 75, 1)


def test_docker_finds_mounted_files_outside() -> None:
    t, _ = started(RUNNING, mounts=("/srv/fx:/fixtures",))
    assert t.host_path("/fixtures/a/b") == "/srv/fx/a/b"
    assert t.host_path("/fixtures2/a") == "/fixtures2/a"


def test_docker_identity_is_a_digest() -> None:
    t, _ = started(RUNNING)
    assert t.identity().image_digest == "sha256:" + "a" * 64
    assert t.identity().labels == {"x": "y"}


def test_docker_kernels_and_kill() -> None:
    t, client = started(RUNNING)
    assert t.kernels() == {"/cache/a/topk.so": 1700000000.5}
    client.container.result = SimpleNamespace(exit_code=3, output=b"")
    with pytest.raises(NotRun, match="no scheduler"):
        t.kill_child()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (docker.errors.ImageNotFound("no such image"), "there is no image img"),
        (docker.errors.APIError("x", explanation="could not select device driver with capabilities: [[gpu]]"),
         "did not start"),
    ],
)  # fmt: skip
def test_docker_errors_are_one_line(error: Exception, words: str) -> None:
    t = DockerTarget("preset", Run("img"), client=FakeDocker(error))  # type: ignore[arg-type]
    with pytest.raises(SmokeError, match=words):
        t.start(Boot())
    assert t.identity().image == "img"  # the report of a failed start is still written


def test_no_docker_engine_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SmokeError, match="no Docker engine answers"):
        docker_target._connect()


def test_a_url_is_not_ours() -> None:
    t = UrlTarget("http://127.0.0.1:1/")
    assert t.url == "http://127.0.0.1:1"
    with pytest.raises(NotRun, match="not ours to restart"):
        t.start(Boot(offline=True))
    with pytest.raises(NotRun, match="not ours to kill"):
        t.kill_child()
    assert (t.log(), t.kernels(), t.memory_available()) == ("", None, None)
