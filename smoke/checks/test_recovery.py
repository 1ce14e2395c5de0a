"""Recovery: when a part of the engine dies, it comes back or says so. It never stays green and wedged."""

from __future__ import annotations

import time

import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import SmokeError, expect
from smoke.session import Session
from smoke.wait import All, GuardQuiet, HttpOk, Phase, RealTokens, wait_for

# Each of these starts the engine again: minutes on a real checkpoint.
pytestmark = [pytest.mark.needs("life"), pytest.mark.profile("full")]


@pytest.mark.needs("supervisor")
def test_killed_child_comes_back(s: Session) -> None:
    """A killed scheduler comes back by itself"""
    before = s.target.life().restarts or 0
    s.target.kill_child()
    headers = s.engine.headers
    restarted = All([GuardQuiet(), _Restarted(before), HttpOk(headers=headers), RealTokens(headers=headers)])
    try:
        took: object = wait_for(s.target, [Phase("comeback", restarted, s.limits.comeback_s)])
    except SmokeError as e:
        took, problem = None, e.problem
    expect(
        "recovery.comeback",
        took,
        f"the engine did not come back: {problem if not took else ''}",
        "the supervisor gave up or waits: read its part of the log",
    )
    text = s.engine.chat("Hello", max_tokens=16, **NO_THINK)["choices"][0]["message"].get("content")
    expect("recovery.answers", text, "back, but the answer is empty", "read the second start's log")


class _Restarted:
    def __init__(self, before: int) -> None:
        self.before = before

    def look(self, target: object) -> str | None:
        n = target.life().restarts  # type: ignore[attr-defined]
        return None if (n or 0) > self.before else "no restart was seen yet"


@pytest.mark.needs("no-supervisor")
def test_killed_child_is_noticed(s: Session) -> None:
    """Without a supervisor, a killed scheduler ends the server"""
    s.memo["colour"] = s.colour()  # the next boot is compared with this one
    s.target.kill_child()
    s.down = "after the kill"
    end = time.monotonic() + s.limits.comeback_s
    while (life := s.target.life()).alive and time.monotonic() < end:
        time.sleep(s.limits.poll_s)
    green = bool(life.alive) and _green(s)
    noticed = life.alive is False
    expect(
        "recovery.noticed",
        noticed,
        "the scheduler is dead and the server still runs" + (", with /health at 200" if green else ""),
        "a wedged server that looks alive is the worst failure: restart on real generations, not on /health",
    )


def _green(s: Session) -> bool:
    return HttpOk().look(s.target) is None
