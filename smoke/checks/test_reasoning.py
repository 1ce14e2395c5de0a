"""Reasoning: split from the answer, switched off on demand, and every effort word understood."""

from __future__ import annotations

import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.session import Session

ASK = "Is 17 a prime number?"
EFFORTS = ("none", "minimal", "low", "medium", "high", "max")
MEND = "set reasoning_parser to the checkpoint's (qwen3 for Qwen3.x)"


def _thinks(s: Session) -> None:
    parser = (s.engine.server_info() or {}).get("reasoning_parser") or s.subject.engine.get(
        "reasoning_parser"
    )
    s.need(parser, "the engine runs without a reasoning parser")


def test_split(s: Session) -> None:
    """Thinking goes into reasoning_content, the answer into content"""
    _thinks(s)
    m = s.engine.chat(ASK, max_tokens=1024)["choices"][0]["message"]
    thought = m.get("reasoning_content") or m.get("reasoning") or ""
    expect("reasoning.split", thought.strip(), "thinking is on, reasoning_content is empty", MEND)
    both = thought + (m.get("content") or "")
    expect("reasoning.tags", "think>" not in both, f"think tags leak: {both[:120]!r}", MEND)


def test_streamed(s: Session) -> None:
    """Streamed thinking is split the same way"""
    _thinks(s)
    m = s.engine.chat(ASK, max_tokens=1024)["choices"][0]["message"]
    st = s.engine.stream(ASK, max_tokens=1024)
    whole = (m.get("reasoning_content") or "").strip(), (m.get("content") or "").strip()
    parts = st.reasoning.strip(), st.text.strip()
    expect("reasoning.streamed", parts == whole, f"streamed {parts!r}, whole {whole!r}"[:400], MEND)


def test_off(s: Session) -> None:
    """enable_thinking=false leaves no reasoning"""
    m = s.engine.chat(ASK, max_tokens=64, **NO_THINK)["choices"][0]["message"]
    thought = (m.get("reasoning_content") or "").strip()
    expect("reasoning.off", not thought, f"thinking was switched off, still reasoned: {thought[:80]!r}", MEND)


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort(s: Session, effort: str) -> None:
    """reasoning_effort is accepted and answered"""
    r = s.engine.chat_raw(ASK, reasoning_effort=effort, max_tokens=64)
    expect(
        "reasoning.effort",
        r.status_code == 200,
        f"reasoning_effort={effort} answered {r.status_code}: {r.text[:160]}",
        "clients send these words unasked; the template needs the patched alias table",
    )
    m = r.json()["choices"][0]["message"]
    text = (m.get("content") or "") + (m.get("reasoning_content") or "")
    expect("reasoning.effort_text", text.strip(), f"reasoning_effort={effort} got an empty answer", MEND)
