"""Run one engine as a child: start, watch, say when it answers, stop every process of it.

The child gets a process group of its own. Its output goes through a pipe to the log file (API key blanked out) and
into the boot-phase reader. Ready means that it generated a token, not that a port is open.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from launch import boot, compiling, paths
from launch.errors import CannotWrite, ConfigError, EngineFailed, Interrupted, UsageError
from launch.host.measure import measure
from launch.render import Command

TAIL_LINES = 25
POLL_S = 0.25
STOP_GRACE_S = 20.0
ORPHAN_GRACE_S = 2.0
PR_SET_PDEATHSIG = 1

Say = Callable[[str], None]


@dataclass(slots=True)
class Options:
    """How to run it. `on_ready` is called once, with the seconds from start to the first token."""

    host: str
    port: int
    model: str
    log_file: Path
    api_key: str | None = None
    boot_timeout_s: float = 3600.0
    echo: bool = False
    phase_file: Path | None = None
    host_share: float = (
        1.0  # of the host's free memory, what the engine leaves (less than 1 on unified memory)
    )
    say: Say = field(default=lambda text: print(text, file=sys.stderr, flush=True))
    on_ready: Callable[[float], None] = field(default=lambda _seconds: None)


def check_port(host: str, port: int) -> None:
    """Raise UsageError when the engine could not listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As uvicorn binds: connections of a server just stopped (TIME_WAIT) do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            mend = (
                "stop what runs there or choose another --port"
                if error.errno in (errno.EADDRINUSE, errno.EACCES)
                else "give --host an address of this machine"
            )
            raise UsageError(f"cannot listen on {host}:{port}: {reason}; {mend}") from error


def read_api_key(path: Path) -> str:
    """The key in the file's first line. Raises ConfigError when it is missing, empty, or open to other users."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path}: {getattr(error, 'strerror', None) or error}") from error
    key = text.strip()
    if not key or any(c.isspace() for c in key):
        raise ConfigError(f"--api-key-file {path}: must hold one key and nothing else")
    if key.startswith("-"):
        raise ConfigError(f"--api-key-file {path}: the engine cannot take a key that starts with a dash")
    if mode & 0o004:
        raise ConfigError(f"--api-key-file {path}: every user can read it; chmod 600 {path}")
    return key


@contextlib.contextmanager
def key_config(key: str | None) -> Iterator[Path | None]:
    """A 0600 YAML file that hands the key to the engine's --config, gone afterwards: a key never stands in argv."""
    if key is None:
        yield None
        return
    quoted = key.replace("'", "''")
    try:
        handle, name = tempfile.mkstemp(prefix="sparkserve-", suffix=".yaml")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"api-key: '{quoted}'\n")
    except OSError as error:
        raise CannotWrite(f"{tempfile.gettempdir()}: {error.strerror or error}") from error
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def run(command: Command, options: Options, inherited: Mapping[str, str] | None = None) -> int:
    """Run the engine until it ends or we are told to stop. Returns 0 after SIGTERM or SIGHUP.

    Raises UsageError (port taken), CannotWrite (log file), ConfigError (no such interpreter), EngineFailed (it
    died or never answered), Interrupted (SIGINT). In every case no process of the engine's group is left.
    """
    check_port(options.host, options.port)
    env = command.environment(os.environ if inherited is None else inherited)
    # Python buffers a pipe in blocks; progress and last words would come late or never.
    env["PYTHONUNBUFFERED"] = "1"
    env |= compiling.environment(
        env,
        # Nothing when it cannot be told, so that one compiler runs at a time.
        available_bytes=(measure().available or 0) * options.host_share,
        cpus=len(os.sched_getaffinity(0)),
        hook=str(paths.hook_dir()),
    )
    with _log_file(options.log_file) as log, _Stop() as stop:
        try:
            child = subprocess.Popen(
                command.argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  no threads run yet
            )
        except OSError as error:
            raise ConfigError(f"cannot run {command.argv[0]}: {error.strerror or error}") from error
        pump = _Pump(child, log, options)
        try:
            return _watch(child, pump, options, stop)
        finally:
            # A second Ctrl-C means now.
            end_group(child, hurry=lambda: stop.count > 1)
            pump.join()


def _watch(child: subprocess.Popen[bytes], pump: _Pump, options: Options, stop: _Stop) -> int:
    started = time.monotonic()
    ready = False
    probe = _Probe(options)
    while True:
        if stop.signal is not None:
            options.say("stopping")
            if stop.signal == signal.SIGINT:
                raise Interrupted("interrupted; the engine and its children are stopped")
            return 0
        code = child.poll()
        if code is not None:
            # Children that live on hold the pipe open: end them, then the log is complete.
            end_group(child, hurry=lambda: stop.count > 0)
            pump.join()
            raise EngineFailed(_obituary(code, ready, list(pump.tail), options.log_file))
        if not ready:
            if probe.answered():
                ready = True
                options.on_ready(time.monotonic() - started)
            elif time.monotonic() - started > options.boot_timeout_s:
                said = pump.last_phase or "nothing"
                raise EngineFailed(
                    f"no token within {options.boot_timeout_s:.0f} s of the start (last phase: {said}); "
                    f"log: {options.log_file}; raise --boot-timeout if it was still making progress"
                )
        stop.wait(POLL_S)


def _obituary(code: int, ready: bool, tail: list[str], log: Path) -> str:
    when = "died while serving" if ready else "did not start"
    reason = boot.cause(tail)
    last = "\n".join(f"  | {line}" for line in tail[-TAIL_LINES:])
    parts = [f"the engine {when} ({boot.ending(code).text})"]
    if reason:
        parts.append(f": {reason}")
    parts.append(f"\nlast lines of {log}:\n{last}" if last else f"; it printed nothing (log: {log})")
    return "".join(parts)


def end_group(
    child: subprocess.Popen[bytes], grace_s: float = STOP_GRACE_S, hurry: Callable[[], bool] = lambda: False
) -> None:
    """TERM to the engine, after `grace_s` or on `hurry` KILL to its whole group; returns when none is left."""
    group = child.pid
    # The main process stops its own children in order; a TERM to all at once looks like a crash to it.
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        _until(lambda: child.poll() is not None or hurry(), grace_s)
    # What outlives it has nobody left to tell it to finish.
    if _signal_group(group, signal.SIGTERM):
        _until(lambda: (child.poll() is not None and not _group_alive(group)) or hurry(), ORPHAN_GRACE_S)
    if _group_alive(group):
        _signal_group(group, signal.SIGKILL)
    child.wait()
    while _group_alive(group):
        time.sleep(0.02)


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _group_alive(group: int) -> bool:
    """Whether a process of the group still runs. Zombies waiting for init do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text("utf-8", errors="replace")
        except OSError:
            continue
        # pid (name, may hold spaces and parentheses) state ppid pgrp …
        fields = text.rpartition(")")[2].split()
        if len(fields) > 2 and int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def _die_with_parent() -> None:
    """In the child: TERM when the launcher is killed, so that nothing is left holding the GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise CannotWrite(
            f"log file {path}: {error.strerror or error}; choose another with --log-file"
        ) from error
    try:
        yield handle
    finally:
        os.close(handle)


class _Pump:
    """Reads the child's output on a thread: log file, tail, boot phases, terminal."""

    def __init__(self, child: subprocess.Popen[bytes], log: int, options: Options) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=400)
        self.last_phase: str | None = None
        self._log, self._options = log, options
        self._secrets = [options.api_key] if options.api_key else []
        self._started = time.monotonic()
        assert child.stdout is not None
        self._pipe = child.stdout
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        self._thread.start()

    def join(self) -> None:
        # A grandchild outside the group may keep the pipe open; its words are not worth waiting for.
        self._thread.join(timeout=5)

    def _run(self) -> None:
        full = False
        for raw in self._pipe:
            text = boot.redact(raw.decode("utf-8", errors="replace"), self._secrets)
            if not full:
                try:
                    os.write(self._log, text.encode())
                except OSError as error:
                    # Serving goes on; only the record ends.
                    full = True
                    self._options.say(
                        f"log file {self._options.log_file}: {error.strerror}; no longer written"
                    )
            # Progress bars rewrite their line with carriage returns.
            line = text.rstrip("\n").rpartition("\r")[2] or text.strip()
            if line:
                self.tail.append(line)
            if self._options.echo:
                self._options.say(line)
            found = boot.phase(line)
            if found and found != self.last_phase:
                self.last_phase = found
                self._note_phase(found)
                if not self._options.echo:
                    self._options.say(f"[{time.monotonic() - self._started:5.0f} s] {found}")

    def _note_phase(self, text: str) -> None:
        """Leave the phase where the container's guard looks for it; it is news, not state: losing it is no error."""
        if self._options.phase_file is not None:
            with contextlib.suppress(OSError):
                self._options.phase_file.write_text(text)


class _Probe:
    """Asks the engine for one token, on a thread, so that a hung answer cannot hold up the watch."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._told = False
        self._answered = threading.Event()
        threading.Thread(target=self._run, name="ready-probe", daemon=True).start()

    def answered(self) -> bool:
        return self._answered.is_set()

    def _run(self) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._options.host, self._options.host)  # noqa: S104
        address = (host, self._options.port)
        while True:
            # A bare connect costs nothing; the HTTP client is loaded only once somebody listens.
            try:
                socket.create_connection(address, timeout=2).close()
            except OSError:
                time.sleep(POLL_S)
                continue
            if self._generates(host):
                self._answered.set()
                return
            time.sleep(1.0)

    def _generates(self, host: str) -> bool:
        import httpx

        key = self._options.api_key
        body = {"model": self._options.model, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
        shown = f"[{host}]" if ":" in host else host
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"http://{shown}:{self._options.port}"
        try:
            with httpx.Client(
                headers=headers, timeout=httpx.Timeout(600.0, connect=5.0), trust_env=False
            ) as client:
                # 503 while the engine's own warm-up runs: asking then would only get in its way.
                if client.get(f"{url}/health").status_code != 200:
                    return False
                reply = client.post(f"{url}/v1/completions", json=body)
            if reply.status_code in (400, 401, 403, 404) and not self._told:
                self._told = True
                self._options.say(f"the engine answers, but refuses a test prompt: HTTP {reply.status_code}")
            return bool(reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] >= 1)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False


class _Stop:
    """Catches INT, TERM and HUP while the engine runs, so that they end it in order."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0
        self._woken = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.count += 1
        self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
