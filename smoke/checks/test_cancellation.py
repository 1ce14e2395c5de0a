"""Cancellation: a client that leaves frees its slot at once, and nobody else notices. No restart."""

from __future__ import annotations

import threading
import time

import httpx

from smoke.engine.client import NO_THINK, Generation
from smoke.errors import CheckFailed, expect
from smoke.session import Session


def _running(s: Session) -> float | None:
    m = s.engine.metrics()
    return None if m is None else m.running


def _until(s: Session, seconds: float, busy: bool) -> float | None:
    """Seconds until the engine is busy (or idle), None when it did not happen in time."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        n = _running(s)
        s.need(n is not None, "the engine's metrics do not say how many requests run", matters=True)
        if (n or 0) > 0 if busy else n == 0:
            return time.monotonic() - begun
        time.sleep(s.limits.poll_s)
    return None


def _long(s: Session) -> int:
    return max(64, min(s.context, s.pool or s.context) - 128)


def test_closed_stream(s: Session) -> None:
    """A stream that the client closes frees its slot"""
    s.need(
        _until(s, s.limits.idle_s, busy=False) is not None, "other requests run on this server", matters=True
    )
    body = {
        "text": "One, two,",
        "stream": True,
        "sampling_params": {"max_new_tokens": _long(s), "ignore_eos": True},
    }
    with httpx.Client(base_url=s.engine.url, headers=s.engine.headers, timeout=s.profile.request_s) as c:  # noqa: SIM117
        with c.stream("POST", "/generate", json=body) as r:
            next(iter(r.iter_bytes()), None)
    took = _until(s, s.limits.cancel_s + 1.5, busy=False)  # the gauge itself is refreshed once a second or so
    expect(
        "cancel.frees",
        took is not None,
        f"the request still runs {s.limits.cancel_s:g} s after its client left",
        "abandoned generations eat the pool: is there a proxy that keeps the connection open?",
    )
    s.rec.note(f"a closed stream was gone from the running count after {took:.1f} s")


def test_next_is_unharmed(s: Session) -> None:
    """Requests beside a cancelled one, and after it, are answered as before"""
    before = s.engine.chat("Name a colour.", max_tokens=16, **NO_THINK)["choices"][0]["message"]["content"]
    body = {
        "text": "One, two,",
        "stream": True,
        "sampling_params": {"max_new_tokens": _long(s), "ignore_eos": True},
    }
    with (
        httpx.Client(base_url=s.engine.url, headers=s.engine.headers, timeout=s.profile.request_s) as c,
        c.stream("POST", "/generate", json=body) as r,
    ):
        chunks = r.iter_bytes()  # kept: a collected iterator closes the stream
        next(chunks, None)
        beside = s.engine.chat("Name a colour.", max_tokens=16, **NO_THINK)["choices"][0]["message"][
            "content"
        ]
    after = s.engine.chat("Name a colour.", max_tokens=16, **NO_THINK)["choices"][0]["message"]["content"]
    expect(
        "cancel.next",
        after == before,
        f"before the cancellation {before!r}, after it {after!r}",
        "a freed slot keeps state: the recurrent state or KV of a cancelled request leaks",
    )
    expect(
        "cancel.beside",
        bool(beside),
        "the request beside the cancelled one got no text",
        "read the engine's log",
    )


def test_abort_request(s: Session) -> None:
    """/abort_request ends a running request"""
    got: list[Generation | CheckFailed] = []
    tokens = _long(s)

    def work() -> None:
        try:
            got.append(s.engine.generate("One, two,", tokens, rid="smoke-abort"))
        except CheckFailed as e:
            got.append(e)

    t = threading.Thread(target=work, daemon=True)
    t.start()
    _until(s, 5.0, busy=True)
    r = s.engine.request("POST", "/abort_request", json={"rid": "smoke-abort"})
    t.join(s.limits.cancel_s + 8)
    done = bool(got) and (isinstance(got[0], CheckFailed) or got[0].made < tokens)
    expect(
        "cancel.abort",
        r.status_code == 200 and done,
        f"/abort_request answered {r.status_code}, the request {'ended' if done else 'ran on'}",
        "operators have no other way to end one request",
    )
