"""Boundaries: the edge of the context, from both sides."""

from __future__ import annotations

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.session import Session

EDGE = 24  # tokens of answer at the edge
MAX_PROMPT = 16_384  # above this the boundary belongs to the long-context group's time budget


def _context(s: Session) -> int:
    if s.profile.rank == 0:
        s.need(s.context <= MAX_PROMPT, f"the context ({s.context}) is too long for the quick profile")
    return s.context


def test_one_token(s: Session) -> None:
    """max_tokens=1 makes exactly one token"""
    u = s.engine.chat("Hello", max_tokens=1, ignore_eos=True, **NO_THINK)["usage"]
    expect(
        "bound.one",
        u.get("completion_tokens") == 1,
        f"usage says {u}",
        "a block must be cut inside: check the engine",
    )


def test_up_to_the_edge(s: Session) -> None:
    """A request that exactly fills the context is answered in full"""
    context = _context(s)
    room = next((r for r in (0, 1, 8, 16, 32) if _fits(s, context, r)), None)
    expect(
        "bound.edge",
        room is not None,
        f"prompt + {EDGE} tokens within the context of {context} is refused even with 32 tokens to spare",
        "look at the refusal in the log; context_length and pool must fit each other",
    )
    if room:
        s.rec.note(
            f"the last {room} token(s) of the context cannot be used (a request that fills it is refused)"
        )


def _fits(s: Session, context: int, spare: int) -> bool:
    prompt = s.prompt("prose", context - EDGE - spare, salt=spare)
    body = {
        "input_ids": list(prompt.ids),
        "sampling_params": {"max_new_tokens": EDGE, "temperature": 0, "ignore_eos": True},
    }
    r = s.engine.request("POST", "/generate", json=body)
    return r.status_code == 200 and r.json().get("meta_info", {}).get("completion_tokens") == EDGE


def test_prompt_too_long(s: Session) -> None:
    """A prompt beyond the context is refused with 4xx and a reason"""
    context = _context(s)
    ids = list(s.prompt("prose", context + 64).ids)
    r = s.engine.request(
        "POST", "/generate", json={"input_ids": ids, "sampling_params": {"max_new_tokens": 4}}
    )
    expect(
        "bound.too_long",
        400 <= r.status_code < 500,
        f"answered {r.status_code}: {r.text[:160]}",
        "a silent cut loses the user's text: keep allow_auto_truncate off",
    )
    expect(
        "bound.reason",
        str(context) in r.text or str(len(ids)) in r.text,
        f"the refusal names no figures: {r.text[:160]!r}",
        "clients need the limit to shorten their prompt",
    )


def test_sum_too_long(s: Session) -> None:
    """prompt + max_tokens beyond the context is refused or cut, never an error of the server"""
    context = _context(s)
    ids = list(s.prompt("prose", context - EDGE, salt=5).ids)
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 4 * EDGE, "temperature": 0, "ignore_eos": True},
    }
    r = s.engine.request("POST", "/generate", json=body)
    expect(
        "bound.sum",
        r.status_code < 500,
        f"answered {r.status_code}: {r.text[:160]}",
        "a request near the limit must not fail inside the engine: read the log",
    )
    s.rec.note(
        "prompt + max_tokens beyond the context is "
        + (
            "cut to fit"
            if r.status_code == 200
            else f"refused with {r.status_code}: clients must lower max_tokens"
        )
    )


def test_alive_after(s: Session) -> None:
    """After the edge, an ordinary request is answered"""
    text = s.engine.chat("Hello", max_tokens=16, **NO_THINK)["choices"][0]["message"].get("content")
    expect("bound.alive", text, "the request after the boundary got no text", "read the engine's log")
