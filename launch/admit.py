"""May this preset start on this machine now? Pure: the plan's terms against measured memory.

On unified memory the whole plan is made anew with what is free now. On a discrete card it is made with the card's free memory,
where the driver tells it. Without a GPU the plan's sum must fit into RAM beside the guard's floor. What cannot be judged is
refused where running out freezes the machine (unified memory), and said everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from launch.errors import ConfigError
from launch.guard.policy import Limits
from launch.host.measure import Host
from launch.plan import GIB, MemoryPlan, PlanFacts, plan
from launch.planfacts import plan_facts
from launch.resolve import Resolved

HOST_TERM = "host"


@dataclass(frozen=True)
class Admission:
    """The answer. `need`: bytes it will take, for the next start's arithmetic; `mend`: the nearest setting that fits."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    mend: str = ""
    need: int = 0
    available: int | None = None
    pool_tokens: int | None = None
    running: int | None = None
    state_slots: int | None = None
    plan: MemoryPlan | None = None

    @property
    def admitted(self) -> bool:
        return not self.reasons

    def refusal(self, slug: str) -> str:
        """One line: why not, and what to do."""
        mend = f"; it fits with {self.mend}" if self.mend else ""
        return f"{slug} is not admitted: {'; '.join(self.reasons)}{mend} (--force starts it all the same)"


def decide(
    resolved: Resolved,
    host: Host,
    *,
    here: str | None,
    reserved: int = 0,
    gpu_free: int | None = None,
) -> Admission:
    """Judge a start. `here`: the class this machine was found to be; `reserved`: bytes that starting servers will still
    take; `gpu_free`: free bytes of a discrete card, None where the driver does not tell."""
    if here != resolved.machine.name:
        found = here or "of no known class"
        note = f"admission: not judged: this machine is {found}, not {resolved.machine.name}"
        return Admission((), (note,))
    if resolved.machine.unified or here == "cpu":
        available = None if host.available is None else max(0, host.available - reserved)
        what = "available memory"
    else:
        available = None if gpu_free is None else max(0, gpu_free - reserved)
        what = "free GPU memory"
    try:
        facts = plan_facts(
            resolved,
            free_gib=None if available is None else max(available, 1) / GIB,
            measured_from="measured",
        )
        made = plan(resolved, facts)
    except ConfigError as e:
        return _unjudged(resolved, str(e), available)
    if available is None:
        note = f"{what} cannot be read on this machine"
        if resolved.machine.unified or here == "cpu":
            return _unjudged(resolved, note, None)
        return _judge(made, facts, (f"admission: {note}; the class's usual figure is taken",))
    held = f", {reserved / GIB:.1f} GiB of it promised to servers that are starting" if reserved else ""
    told = f"admission: {(available + reserved) / GIB:.1f} GiB {what}{held}"
    if here == "cpu":
        return _ram(resolved, made, host, available, told)
    admission = _judge(made, facts, (told,))
    return _with_killer(admission, host) if resolved.machine.unified else admission


def _unjudged(resolved: Resolved, why: str, available: int | None) -> Admission:
    if resolved.machine.unified:
        return Admission((f"the memory plan cannot be made: {why}",), (), available=available)
    return Admission((), (f"admission: not judged: {why}",), available=available)


def _judge(made: MemoryPlan, facts: PlanFacts, notes: tuple[str, ...]) -> Admission:
    need = sum(t.size for t in made.terms if t.name != HOST_TERM)
    told = f"{notes[0]}; fraction {made.fraction:g} takes {need / GIB:.1f} GiB with everything beside it"
    return Admission(
        made.problems,
        (told, *made.warnings),
        mend=made.mend,
        need=need,
        available=facts.free_bytes,
        pool_tokens=made.pool_tokens,
        running=made.concurrency,
        state_slots=made.state_slots,
        plan=made,
    )


def _with_killer(a: Admission, host: Host) -> Admission:
    """earlyoom ends the biggest process without a word (pains.md 4): its threshold must lie below what the plan leaves."""
    if host.earlyoom is None or host.memory is None or a.available is None:
        return a
    kills_at = host.earlyoom.floor_bytes(host.memory.total)
    left = a.available - a.need
    if left > kills_at:
        return a
    reason = (
        f"earlyoom kills below {kills_at / GIB:.1f} GiB available and the plan leaves {left / GIB:.1f} GiB; "
        f"lower its -m, or the fraction"
    )
    return replace(a, reasons=(*a.reasons, reason))


def _ram(resolved: Resolved, made: MemoryPlan, host: Host, available: int, told: str) -> Admission:
    """Without a GPU: every term lies in RAM. The static fraction means nothing there, max_total_tokens bounds the pool."""
    total = host.memory.total if host.memory else available
    if host.cgroup is not None and host.cgroup.limit is not None:
        total = min(total, host.cgroup.limit)  # as the guard takes it
    floor = Limits.default(total).floor
    need = sum(t.size for t in made.terms)
    reasons: tuple[str, ...] = ()
    mend = ""
    if need + floor > available:
        reasons = (
            f"{need / GIB:.1f} GiB planned and a floor of {floor / GIB:.1f} GiB are more than the {available / GIB:.1f} GiB "
            f"of RAM that are available",
        )
        rest = need - made.pool_tokens * made.kv_bytes_per_token
        tokens = (available - floor - rest) // made.kv_bytes_per_token // 1024 * 1024
        least = min(resolved.preset.memory.request_tokens, made.longest_context)
        if tokens >= least:
            mend = f"engine.max_total_tokens = {tokens} (now {made.pool_tokens})"
    return Admission(
        reasons,
        (f"{told}; no GPU, so the plan is held against RAM: {need / GIB:.1f} GiB",),
        mend=mend,
        need=need,
        available=available,
        pool_tokens=made.pool_tokens,
        running=made.concurrency,
        state_slots=made.state_slots,
        plan=made,
    )
