"""What the engine made of the plan: its own figures after start against what was planned. Pure, but for `fetch`.

The engine clamps in silence: a pool smaller than max_total_tokens, fewer requests at once than max_running_requests because
the state slots run out. An operator who asked for eight streams must not find out under load that there are two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

# Only the log (mem_cache/memory_pool.py of 0.5.23) has the slots that were made: /server_info repeats what was asked for.
_SLOTS = re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+)")

# The plan meets published pools within 2 % (docs/memory.md); free memory differs between boots by a few GiB of 114.
POOL_TOLERANCE = 0.10
# Of what the plan takes; workspaces and other programs move free memory by about as much as they move a pool.
FREE_TOLERANCE = 0.10
GIB = 1 << 30
PAGE = 64  # the engine rounds a pool to whole pages, 64 tokens at most here


@dataclass(frozen=True)
class Realised:
    """From /server_info; None is what it does not say. Tokens, requests."""

    pool_tokens: int | None = None
    running: int | None = None
    running_asked: int | None = None
    state_slots: int | None = None
    context: int | None = None


def read(info: Mapping[str, Any]) -> Realised:
    """/server_info of 0.5.23 (managers/scheduler_components/internal_state.py)."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    memory = state.get("memory_usage")
    memory = memory if isinstance(memory, Mapping) else {}
    return Realised(
        pool_tokens=_int(memory.get("token_capacity")) or _int(info.get("max_total_num_tokens")),
        running=_int(state.get("effective_max_running_requests_per_dp")),
        running_asked=_int(info.get("max_running_requests")),
        state_slots=_int(state.get("max_mamba_cache_size")),
        context=_int(info.get("context_length")),
    )


def with_log(seen: Realised, log: str) -> Realised:
    """`seen` with the recurrent-state slots that the engine's log says it made, where it does."""
    found = _SLOTS.findall(log)
    return replace(seen, state_slots=int(found[-1])) if found else seen


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def compare(
    seen: Realised,
    engine: Mapping[str, Any],
    *,
    pool_tokens: int | None,
    running: int | None,
    slots: int | None = None,
    sized_by_plan: bool,
) -> tuple[list[str], list[str]]:
    """(errors, notes). `engine`: the preset's keys; `pool_tokens`, `running`, `slots`: the plan's figures, None without a plan.

    `sized_by_plan`: the pool follows from the fraction, as in a real preset; a fixture is held to what it sets itself.
    """
    errors: list[str] = []
    notes: list[str] = []
    _pool(seen, engine, pool_tokens if sized_by_plan else None, errors, notes)
    asked = _int(engine.get("max_running_requests"))
    # A plan that foresaw the clamp has said so before the start.
    foreseen = min(asked, running) if asked and running else asked or (running if sized_by_plan else None)
    if seen.running is None:
        notes.append("the engine does not say how many requests it runs at once")
    elif foreseen is not None and seen.running < foreseen:
        errors.append(
            f"{seen.running} requests at once instead of {foreseen}: the engine clamped max_running_requests"
        )
    _slots(seen, engine, slots if sized_by_plan else None, errors, notes)
    context = _int(engine.get("context_length"))
    if context and seen.context is not None and seen.context < context:
        errors.append(f"context of {seen.context:,} tokens instead of {context:,}")
    return errors, notes


def _pool(
    seen: Realised, engine: Mapping[str, Any], planned: int | None, errors: list[str], notes: list[str]
) -> None:
    if seen.pool_tokens is None:
        notes.append("the engine does not say how large its KV pool is")
        return
    asked = _int(engine.get("max_total_tokens"))
    if asked and seen.pool_tokens < asked - PAGE and not (planned is not None and planned < asked):
        errors.append(f"a KV pool of {seen.pool_tokens:,} tokens instead of max_total_tokens {asked:,}")
    elif planned and seen.pool_tokens < planned * (1 - POOL_TOLERANCE):
        errors.append(
            f"a KV pool of {seen.pool_tokens:,} tokens, more than {POOL_TOLERANCE:.0%} below the planned {planned:,}"
        )
    elif planned and seen.pool_tokens > planned * (1 + POOL_TOLERANCE):
        notes.append(f"the KV pool of {seen.pool_tokens:,} tokens is larger than the planned {planned:,}")


def _slots(
    seen: Realised, engine: Mapping[str, Any], planned: int | None, errors: list[str], notes: list[str]
) -> None:
    asked = _int(engine.get("max_mamba_cache_size"))
    if seen.state_slots is None:
        if planned or asked:
            notes.append("the engine does not say how many state slots it made")
    elif asked and seen.state_slots < asked:
        errors.append(f"{seen.state_slots} state slots instead of {asked}")
    elif planned and not asked and seen.state_slots < planned * (1 - POOL_TOLERANCE):
        errors.append(
            f"{seen.state_slots} state slots, more than {POOL_TOLERANCE:.0%} below the planned {planned}"
        )


def compare_free(
    seen: int | None, *, before: int | None, need: int, floor: int | None
) -> tuple[list[str], list[str]]:
    """(errors, notes) on the bytes free at ready. `before`: free when the start was judged; `need`: what the plan takes of
    it; `floor`: below it the guard stops the server, None where no guard looks (a discrete card's memory)."""
    if seen is None:
        return [], ["free memory at ready cannot be read"] if need else []
    if floor is not None and seen < floor:
        return [
            f"{seen / GIB:.1f} GiB of memory left at ready, below the guard's floor of {floor / GIB:.1f} GiB"
        ], []
    if before is None or not need:
        return [], []
    left = before - need
    if seen < left - need * FREE_TOLERANCE:
        return [], [
            f"{seen / GIB:.1f} GiB of memory left at ready where the plan left {left / GIB:.1f} GiB: "
            f"it or another program took more than planned"
        ]
    return [], []


def fetch(url: str, key: str | None) -> Mapping[str, Any] | None:
    """/server_info as data; None when there is no such answer."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.get(f"{url}/server_info", headers=headers, timeout=30, trust_env=False)
        data = reply.json() if reply.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        return None
    return data if isinstance(data, Mapping) else None
