"""Composable wait strategies: what "ready" means, with a deadline per phase.

A strategy looks once and says what is still missing, or None. `All` and `Any_` compose them, `Phase` gives one
a deadline, `wait_for` runs the phases in order. Time and sleep are arguments, so the tests need neither.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from smoke.causes import explain
from smoke.errors import ENGINE, NOT_ADMITTED, SmokeError

TAIL_LINES = 40


@dataclass(frozen=True)
class Life:
    """What a target knows about its engine. `health` is the container's word, None without one."""

    alive: bool | None  # None: cannot be told (a url)
    exit_code: int | None = None
    restarts: int | None = None
    health: str | None = None


class Watched(Protocol):
    """The part of a target that waiting needs."""

    url: str

    def life(self) -> Life: ...
    def log(self) -> str: ...


class Strategy(Protocol):
    """One look. Returns what is missing, or None when satisfied."""

    def look(self, target: Watched) -> str | None: ...


@dataclass(frozen=True)
class PortOpen:
    """Something listens."""

    timeout: float = 2.0

    def look(self, target: Watched) -> str | None:
        u = urlsplit(target.url)
        port = u.port or (443 if u.scheme == "https" else 80)
        try:
            socket.create_connection((u.hostname or "127.0.0.1", port), self.timeout).close()
        except OSError as e:
            return f"nothing listens at {target.url} ({e.strerror or e})"
        return None


@dataclass(frozen=True)
class HttpOk:
    """GET answers 200."""

    path: str = "/health"
    timeout: float = 5.0
    headers: dict[str, str] = field(default_factory=dict)

    def look(self, target: Watched) -> str | None:
        try:
            r = httpx.get(target.url + self.path, timeout=self.timeout, headers=self.headers)
        except httpx.HTTPError as e:
            return f"GET {self.path} does not answer ({type(e).__name__})"
        return None if r.status_code == 200 else f"GET {self.path} answers {r.status_code}"


@dataclass(frozen=True)
class RealTokens:
    """A generation comes back. /health and /v1/models stay green on a wedged engine; this does not."""

    tokens: int = 4
    timeout: float = 60.0
    headers: dict[str, str] = field(default_factory=dict)

    def look(self, target: Watched) -> str | None:
        body = {
            "text": "The",
            "sampling_params": {"max_new_tokens": self.tokens, "temperature": 0, "ignore_eos": True},
        }
        try:
            r = httpx.post(target.url + "/generate", json=body, timeout=self.timeout, headers=self.headers)
        except httpx.TimeoutException:
            return f"a generation of {self.tokens} tokens did not end within {self.timeout:.0f} s"
        except httpx.HTTPError as e:
            return f"a generation broke off ({type(e).__name__})"
        if r.status_code != 200:
            return f"a generation answered {r.status_code}: {r.text[:120]}"
        try:
            made = int(r.json()["meta_info"]["completion_tokens"])
        except (ValueError, KeyError, TypeError):
            return "a generation answered without meta_info.completion_tokens: is this SGLang?"
        return None if made == self.tokens else f"asked for {self.tokens} tokens, got {made}"


@dataclass(frozen=True)
class LogLine:
    """A line has appeared in the log."""

    text: str

    def look(self, target: Watched) -> str | None:
        return None if self.text in target.log() else f"the log has no line {self.text!r} yet"


@dataclass(frozen=True)
class NoRestart:
    """The engine has not been restarted behind our back. Raises at once: waiting longer cannot mend it."""

    allowed: int = 0

    def look(self, target: Watched) -> str | None:
        n = target.life().restarts
        if n is not None and n > self.allowed:
            raise _down(target, f"the engine was restarted {n} time(s) during the start")
        return None


@dataclass(frozen=True)
class GuardQuiet:
    """The container's health is neither tripped nor wedged."""

    def look(self, target: Watched) -> str | None:
        health = target.life().health
        if health == "tripped":
            raise _down(target, "the memory guard tripped", NOT_ADMITTED)
        return "the guard calls the engine wedged" if health == "wedged" else None


@dataclass(frozen=True)
class Healthy:
    """The container's own HEALTHCHECK says ready. Satisfied where there is none."""

    def look(self, target: Watched) -> str | None:
        health = target.life().health
        return None if health in (None, "ready", "healthy") else f"the container's health is {health}"


@dataclass(frozen=True)
class Alive:
    """The process or container runs. Raises with the translated cause when it ended."""

    def look(self, target: Watched) -> str | None:
        life = target.life()
        if life.alive is False:
            raise _down(target, "the engine ended before it was ready")
        return None


@dataclass(frozen=True)
class All:
    """Every part is satisfied, in the order given."""

    parts: Sequence[Strategy]

    def look(self, target: Watched) -> str | None:
        for part in self.parts:
            if (missing := part.look(target)) is not None:
                return missing
        return None


@dataclass(frozen=True)
class Any_:  # noqa: N801  (any is taken)
    """One part is satisfied."""

    parts: Sequence[Strategy]

    def look(self, target: Watched) -> str | None:
        missing = [p.look(target) for p in self.parts]
        return None if None in missing else " and ".join(str(m) for m in missing)


@dataclass(frozen=True)
class Phase:
    """A named step of the start. `deadline` and `every` are seconds."""

    name: str
    until: Strategy
    deadline: float
    every: float = 0.5


@dataclass(frozen=True)
class Took:
    """How long one phase took, in seconds."""

    phase: str
    seconds: float


def split_boot(took: Sequence[Took], timings: dict[str, float]) -> list[Took]:
    """The phases of a start with the first one divided by what the engine timed itself (seconds by its names).

    Weights, KV pool and graphs lie inside the scheduler's start, which lies inside the wait for a port.
    """
    graphs = sum(v for k, v in timings.items() if k.startswith(("prefill", "decode", "target_", "draft_")))
    parts = {
        "weights": timings.get("load_weight", 0),
        "kv pool": timings.get("kv_cache_allocation", 0),
        "graphs": graphs,
    }
    if not took or not timings or sum(parts.values()) > took[0].seconds:
        return list(took)
    rest = took[0].seconds - sum(parts.values())
    return [Took("process", rest), *(Took(k, v) for k, v in parts.items() if v > 0), *took[1:]]


def tail(log: str, lines: int = TAIL_LINES) -> str:
    return "\n".join(log.rstrip().splitlines()[-lines:])


def _down(target: Watched, what: str, code: int | None = None) -> SmokeError:
    life, log = target.life(), target.log()
    cause = explain(life.exit_code, tail(log, 400))
    return SmokeError(f"{what}: {cause.title}", cause.todo, code or cause.code, tail(log))


def wait_for(
    target: Watched,
    phases: Sequence[Phase],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Took]:
    """Run the phases in order. Raises SmokeError with the cause and the log's tail when one is late."""
    took: list[Took] = []
    for phase in phases:
        begun = clock()
        while (missing := phase.until.look(target)) is not None:
            if clock() - begun >= phase.deadline:
                log = target.log()
                cause = explain(target.life().exit_code, tail(log, 400)) if log else None
                why = f"; {cause.title}" if cause else ""
                todo = cause.todo if cause else f"check the server, or raise --deadline {phase.name}=SECONDS"
                raise SmokeError(
                    f"phase {phase.name!r} was not done within {phase.deadline:g} s: {missing}{why}",
                    todo,
                    ENGINE,
                    tail(log),
                )
            sleep(phase.every)
        took.append(Took(phase.name, clock() - begun))
    return took


DEADLINES = {"port": 1800.0, "ready": 1800.0, "tokens": 300.0}  # seconds; --deadline NAME=S overrides


def start_phases(headers: dict[str, str], deadlines: dict[str, float], owned: bool) -> list[Phase]:
    """The start of an engine: a port, then health, then real tokens, watched by the guard all along."""
    watch: list[Strategy] = [Alive(), NoRestart(), GuardQuiet()]
    d = DEADLINES | deadlines
    if not owned:  # a server that is already there needs no patience for its port
        d["port"] = deadlines.get("port", 5.0)
        d["ready"] = deadlines.get("ready", 60.0)
    one = min(60.0, d["tokens"])
    return [
        Phase("port", All([*watch, PortOpen()]), d["port"]),
        Phase("ready", All([*watch, HttpOk("/health", headers=headers)]), d["ready"]),
        Phase("tokens", All([*watch, RealTokens(timeout=one, headers=headers), Healthy()]), d["tokens"]),
    ]
