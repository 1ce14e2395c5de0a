"""The mock as a target: a server in a thread, whose life is only a flag."""

from __future__ import annotations

import threading
import time

import uvicorn

from smoke.errors import SmokeError
from smoke.mock.app import create
from smoke.mock.state import State
from smoke.subject import Subject
from smoke.targets import Boot, Identity
from smoke.targets.process import free_port
from smoke.wait import Life

SUBJECT = Subject(
    name="mock",
    sha256="0" * 64,
    status="fixture",
    machine="mock",
    target="mock/target",
    target_revision="a" * 40,
    draft="mock/draft",
    draft_revision="b" * 40,
    algorithm="DFLASH",
    draft_tokens=8,
    draft_quantization="unquant",
    head="NVFP4",
    engine={
        "max_running_requests": 8,
        "context_length": 1024,
        "attention_backend": "flashinfer",
        "fp4_gemm_backend": "flashinfer_cutlass",
        "kv_cache_dtype": "fp8_e4m3",
    },
    accept_length_min=2.0,
    accept_length=8.0,
    chat_answer="Hello! How can I help you today?",
    fast_path=("selector-in-graph", "quantized-head", "fp8-kv", "draft-graph", "target-graph"),
    control="mock-nodraft",
)


class MockServer:
    """Runs the app on a free loopback port until closed."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.port = free_port()
        config = uvicorn.Config(create(state), "127.0.0.1", self.port, log_level="critical", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True, name="mock-engine")
        self.thread.start()
        while not self.server.started:
            if not self.thread.is_alive():
                raise SmokeError("the mock did not start", "see its traceback above")
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)


class MockTarget:
    kind = "process"
    owns = True
    has_log = True
    api_key = None

    def __init__(self, server: MockServer, supervised: bool = False) -> None:
        self.server = server
        self.supervised = supervised
        self.url = server.url
        self.memory = 0

    @property
    def s(self) -> State:
        return self.server.state

    def start(self, boot: Boot) -> None:
        s = self.s
        if boot.offline and "offline-fails" in s.faults:
            raise SmokeError("the offline start failed: LocalEntryNotFoundError", "pull first")
        s.boots += 1
        s.alive, s.control, s.restarts = True, boot.control is not None, 0

    def stop(self) -> None:
        self.s.alive = False

    def cut(self) -> None:
        self.s.alive = False

    def life(self) -> Life:
        s = self.s
        health = "tripped" if s.has("guard-tripped") else "ready"
        restarts = s.restarts + (1 if s.has("restarted") else 0)
        alive = s.alive or s.has("stays-green")
        return Life(alive, None if alive else -9, restarts, health)

    def log(self) -> str:
        return self.s.log()

    def kill_child(self) -> None:
        if self.supervised and "stays-down" not in self.s.faults:
            self.s.restarts += 1
        else:
            self.s.alive = False

    def kernels(self) -> dict[str, float] | None:
        return {"/cache/a.so": float(self.s.boots if "compiles-silently" in self.s.faults else 1)}

    def network(self) -> str | None:
        return "eth0; a connection outwards came about" if self.s.has("offline-leaks") else "lo only"

    def identity(self) -> Identity:
        return Identity("mock:1", "sha256:" + "d" * 64, {}, ("mock",))

    def memory_available(self) -> int | None:
        self.memory += 1
        return 64 * 2**30 - (self.memory * 2**26 if "memory-creeps" in self.s.faults else 0)

    def memory_used(self) -> int | None:
        return 8 * 2**30 + (self.memory * 2**26 if "memory-creeps" in self.s.faults else 0)

    def host_path(self, path: str) -> str:
        return path

    def tidy(self, *, keep: bool) -> str | None:
        del keep
        return None
