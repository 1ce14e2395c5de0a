"""Startup: the engine that answers is the one the preset asked for, and it started cleanly."""

from __future__ import annotations

import pytest

from smoke.errors import expect
from smoke.session import Session


@pytest.mark.needs("log")
def test_no_restart(s: Session) -> None:
    """It started once, without a restart"""
    n = s.target.life().restarts
    expect(
        "startup.restarts",
        not n,
        f"the engine was restarted {n} time(s)",
        "read the log of the first start: a crash loop hides behind a restart policy",
    )


@pytest.mark.needs("log")
def test_no_traceback(s: Session) -> None:
    """The start's log has no traceback"""
    f = s.facts.log
    assert f is not None
    expect(
        "startup.traceback",
        f.tracebacks == 0,
        f"the log holds {f.tracebacks} traceback(s)",
        "read them; a swallowed error at start is a missing feature later",
    )


def test_health(s: Session) -> None:
    """/health answers 200"""
    r = s.engine.request("GET", "/health")
    expect(
        "startup.health",
        r.status_code == 200,
        f"/health answers {r.status_code}",
        "a load balancer will not send requests here: read the log",
    )


def test_models(s: Session) -> None:
    """/v1/models lists the served model"""
    names = [m.get("id") for m in s.engine.json("GET", "/v1/models").get("data") or []]
    expect(
        "startup.models",
        s.engine.model in names,
        f"/v1/models lists {names}, not {s.engine.model!r}",
        "set served_model_name; clients ask for it by name",
    )


def test_server_info(s: Session) -> None:
    """/server_info says which engine this is"""
    expect(
        "startup.info",
        s.fresh_facts().version,
        "neither /server_info nor /get_server_info says a version",
        "is this SGLang? A proxy may hide the route; point --url at the engine itself",
    )


def test_metrics(s: Session) -> None:
    """/metrics counts running requests"""
    m = s.engine.metrics()
    expect(
        "startup.metrics",
        m is not None and m.running is not None,
        "/metrics has no sglang:num_running_reqs",
        "start with enable_metrics = true",
    )


def test_context_and_pool(s: Session) -> None:
    """The token pool holds one request of the full context"""
    pool, context = s.facts.pool_tokens, s.facts.context_length
    s.need(pool and context, "the engine says neither pool nor context length", matters=True)
    assert pool
    assert context
    expect(
        "startup.pool",
        pool >= context,
        f"the pool holds {pool} tokens, the context is {context}",
        "raise mem_fraction_static or lower context_length: long requests will be refused or starve",
    )


@pytest.mark.needs("preset")
def test_running_requests(s: Session) -> None:
    """As many requests run at once as the preset asks for"""
    asked = s.subject.engine.get("max_running_requests")
    s.need(asked and s.facts.running_limit, "preset or engine does not say how many requests run at once")
    expect(
        "startup.clamp",
        (s.facts.running_limit or 0) >= int(asked or 0),
        f"the preset asks for {asked} running requests, the engine allows {s.facts.running_limit}",
        "the state pool is too small: raise max_mamba_cache_size or mamba_full_memory_ratio, or ask for fewer",
    )


@pytest.mark.needs("preset")
def test_context_length(s: Session) -> None:
    """The context length is the preset's"""
    want = s.subject.engine.get("context_length")
    s.need(want and s.facts.context_length, "preset or engine does not say the context length")
    expect(
        "startup.context",
        s.facts.context_length == want,
        f"the preset asks for a context of {want}, the engine has {s.facts.context_length}",
        "another server may answer on this port; compare its command line with `sparkserve serve PRESET --print`",
    )


@pytest.mark.needs("preset")
def test_revisions(s: Session) -> None:
    """Target and draft run at the pinned revisions"""
    for what, want, have, path in (
        ("target", s.subject.target_revision, s.facts.revision, s.facts.model_path),
        ("draft", s.subject.draft_revision, s.facts.draft_revision, s.facts.draft_path),
    ):
        if want is None:
            continue
        expect(
            "startup.revision",
            want in (have or "") or want in (path or ""),
            f"the {what} should be at revision {want}, the engine says {have} ({path})",
            "start with `sparkserve serve`, which pins both; a moved branch changes weights under you",
        )


@pytest.mark.needs("preset")
def test_speculation(s: Session) -> None:
    """Speculation is what the preset says: algorithm and draft tokens"""
    want, have = s.subject.algorithm, s.facts.algorithm
    expect(
        "startup.algorithm",
        (want or None) == have,
        f"the preset says speculation {want}, the engine runs {have}",
        "compare the command line with `sparkserve serve PRESET --print`",
    )
    if want and s.subject.draft_tokens and s.facts.draft_tokens:
        expect(
            "startup.draft_tokens",
            s.facts.draft_tokens == s.subject.draft_tokens,
            f"the preset says {s.subject.draft_tokens} draft tokens, the engine uses {s.facts.draft_tokens}",
            "set draft.tokens in the preset; the engine falls back to the draft's own block size",
        )


def test_guard_is_quiet(s: Session) -> None:
    """The memory guard did not speak up"""
    health = s.target.life().health
    s.need(health is not None, "this target has no guard (only the container does)")
    expect(
        "startup.guard",
        health == "ready",
        f"the guard says {health}",
        "read the guard's low-water mark in the log; lower mem_fraction_static",
    )
