"""`sparkserve serve PRESET` as a child process in a group of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from smoke.errors import CONFIG, SmokeError
from smoke.targets.base import Boot, Identity, NotRun, read_meminfo
from smoke.wait import Life

ROOT = Path(__file__).resolve().parents[2]

# Where the engine and what it calls keep compiled kernels; (variable, default under the home folder).
_CACHES = (
    ("SGLANG_CACHE_DIR", ".cache/sglang"),
    ("SGLANG_JIT_CACHE_DIR", ".cache/sglang/jit"),
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"),
    ("TRITON_CACHE_DIR", ".triton"),
    ("TVM_FFI_CACHE_DIR", ".cache/tvm-ffi"),
)
_COMPILED = {".so", ".cubin", ".fatbin", ".hsaco"}


@dataclass(frozen=True)
class Start:
    """One start, in the terms of `sparkserve serve`."""

    preset: str
    port: int
    log: Path
    boot: Boot
    machine: str | None = None
    key_file: Path | None = None


Render = Callable[[Start], tuple[list[str], dict[str, str]]]


def sparkserve(start: Start) -> tuple[list[str], dict[str, str]]:
    """(argv, environment additions) of a start. The only place that knows the words of `sparkserve serve`."""
    argv = [sys.executable, "-m", "launch", "serve", start.boot.control or start.preset]
    # A report belongs to the preset as it is written, not to what `sparkserve tune` made of it on this machine.
    argv += ["--no-profile", "--port", str(start.port), "--log-file", str(start.log)]
    argv += ["--machine", start.machine] if start.machine else []
    argv += ["--api-key-file", str(start.key_file)] if start.key_file else []
    env = {"PYTHONPATH": os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)}
    if start.boot.offline:
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if start.boot.no_compile:
        env["SPARK_NO_COMPILE"] = "1"
    return argv, env


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class ProcessTarget:
    kind = "process"
    owns = True
    has_log = True
    supervised = False

    def __init__(
        self,
        preset: str,
        *,
        port: int | None = None,
        machine: str | None = None,
        key_file: Path | None = None,
        api_key: str | None = None,
        render: Render = sparkserve,
        workdir: Path | None = None,
        stop_s: float = 60.0,
    ) -> None:
        self.preset = preset
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.machine, self.key_file, self.api_key = machine, key_file, api_key
        self.render = render
        self.stop_s = stop_s
        self.own_dir = workdir is None
        self.dir = workdir or Path(tempfile.mkdtemp(prefix="sparkserve-smoke-"))
        self.proc: subprocess.Popen[bytes] | None = None
        self.boots = 0
        self.argv: list[str] = []

    @property
    def log_path(self) -> Path:
        return self.dir / f"engine-{self.boots}.log"

    @property
    def words_path(self) -> Path:
        """What the launcher itself said."""
        return self.dir / f"serve-{self.boots}.out"

    def start(self, boot: Boot) -> None:
        self.stop()
        self.boots += 1
        self.argv, extra = self.render(
            Start(self.preset, self.port, self.log_path, boot, self.machine, self.key_file)
        )
        self.dir.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | extra
        try:
            with self.words_path.open("wb") as out:
                self.proc = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=env,
                    start_new_session=True,
                )
        except OSError as e:
            raise SmokeError(
                f"cannot start {self.argv[0]} ({e.strerror})", "check the environment", CONFIG
            ) from e

    def life(self) -> Life:
        if self.proc is None:
            return Life(alive=False)
        code = self.proc.poll()
        ready = self.log().count("The server is fired up and ready to roll!") if code is None else 0
        return Life(alive=code is None, exit_code=code, restarts=max(0, ready - 1))

    def log(self) -> str:
        """The engine's log, then the launcher's words."""
        return _text(self.log_path) + _text(self.words_path)

    def stop(self) -> None:
        """TERM to the group, then KILL; the group is ours alone, so nobody else is hit."""
        if self.proc is None:
            return
        group = _family(self.proc.pid)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.proc.wait(self.stop_s)
        self._signal(signal.SIGKILL)
        self.proc.wait()
        for p in group:  # a child that made a session of its own
            with contextlib.suppress(psutil.Error):
                p.kill()
        psutil.wait_procs(group, timeout=10)
        self.proc = None

    def cut(self) -> None:
        """KILL to every process of it, without waiting: requests in flight break off at once."""
        for p in _family(self.proc.pid) if self.proc else ():
            with contextlib.suppress(psutil.Error):
                p.kill()

    def _signal(self, sig: signal.Signals) -> None:
        assert self.proc is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.proc.pid, sig)

    def kill_child(self) -> None:
        """Kill the engine's scheduler, its largest child."""
        if self.proc is None:
            raise NotRun("no engine runs")
        schedulers = [p for p in _family(self.proc.pid) if "scheduler" in _name(p)]
        if not schedulers:
            raise NotRun("no scheduler process was found")
        for p in schedulers:
            p.kill()

    def kernels(self) -> dict[str, float] | None:
        """Compiled objects in the caches: path to time of writing."""
        out: dict[str, float] = {}
        for var, default in _CACHES:
            root = Path(os.environ.get(var) or Path.home() / default)
            for p in root.rglob("*") if root.is_dir() else ():
                if p.suffix in _COMPILED:
                    with contextlib.suppress(OSError):
                        out[str(p)] = p.stat().st_mtime
        return out

    def network(self) -> str | None:
        return None  # it shares the host's

    def identity(self) -> Identity:
        return Identity(command=tuple(self.argv))

    def memory_available(self) -> int | None:
        return read_meminfo()

    def memory_used(self) -> int | None:
        """Resident bytes of the whole family; pages it shares count once for each."""
        total = 0
        for p in _family(self.proc.pid) if self.proc else ():
            with contextlib.suppress(psutil.Error):
                total += p.memory_info().rss
        return total or None

    def tidy(self, *, keep: bool) -> str | None:
        """Remove the logs' folder, or say where it is kept."""
        if not self.own_dir:
            return None
        if keep and self.dir.is_dir():
            return str(self.dir)
        shutil.rmtree(self.dir, ignore_errors=True)
        return None

    def host_path(self, path: str) -> str:
        return path


def _family(pid: int) -> list[psutil.Process]:
    try:
        me = psutil.Process(pid)
        return [me, *me.children(recursive=True)]
    except psutil.Error:
        return []


def _name(p: psutil.Process) -> str:
    try:
        return " ".join([p.name(), *p.cmdline()[:1]])
    except psutil.Error:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
