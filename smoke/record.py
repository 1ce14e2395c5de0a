"""Collect what the checks measure, and turn it into a report."""

from __future__ import annotations

import dataclasses
import datetime
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from smoke import hardware
from smoke.engine.facts import EngineFacts
from smoke.errors import SmokeError
from smoke.profiles import Profile
from smoke.report import model as m
from smoke.report.ceiling import with_ceilings
from smoke.subject import Subject
from smoke.wait import Took
from smoke.workload.load import Result

MAX_POINTS = 2000  # memory points kept; a soak halves its resolution rather than growing without end


class Recorder:
    """Results of one run, in the order they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begun = clock()
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.checks: list[m.Check] = []
        self.boots: list[m.Boot] = []
        self.acceptance: list[m.Acceptance] = []
        self.loads: list[m.Load] = []
        self.depths: list[m.Depth] = []
        self.memory: list[m.MemoryPoint] = []
        self.notes: list[str] = []
        self.left_out = 0

    def boot(self, name: str, took: list[Took]) -> None:
        phases = [m.BootPhase(phase=t.phase, seconds=round(t.seconds, 3)) for t in took]
        self.boots.append(m.Boot(name=name, phases=phases))

    def load(self, family: str, asked: str, prompt: int, output: int, *, r: Result, concurrency: int) -> None:
        self.loads.append(
            m.Load(
                prompt=prompt,
                output=output,
                concurrency=concurrency,
                asked=asked,
                family=family,
                ttft_s=_r(r.ttft),
                latency_s=_r(r.latency),
                decode_rate=_r(r.decode_rate),
                throughput=round(r.throughput, 3),
                accept_length=_r(r.accept_length),
                errors=len(r.errors),
            )
        )

    def accept(self, family: str, depth: int, length: float, tokens: int, floor: float | None) -> None:
        self.acceptance.append(
            m.Acceptance(family=family, depth=depth, length=round(length, 4), tokens=tokens, floor=floor)
        )

    def depth(
        self, tokens: int, ttft: float, again: float | None, cached: int | None, accept: float | None
    ) -> None:
        self.depths.append(
            m.Depth(
                tokens=tokens,
                ttft_s=round(ttft, 4),
                again_s=_r(again),
                cached=cached,
                accept_length=_r(accept),
            )
        )

    def memory_point(self, available: int) -> None:
        if len(self.memory) >= MAX_POINTS:
            del self.memory[1::2]
        self.memory.append(m.MemoryPoint(at=round(self.clock() - self.begun, 2), available=available))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def counts(self) -> m.Counts:
        c = m.Counts()
        for check in self.checks:
            field = check.outcome.replace(" ", "_")
            setattr(c, field, getattr(c, field) + 1)
        return c


def build(
    rec: Recorder,
    bound: m.Bound,
    facts: EngineFacts | None,
    selection: str | None,
    *,
    stopped: SmokeError | None = None,
    interrupted: bool = False,
    late: str | None = None,
) -> m.Report:
    """The finished report. A run with failures is `not good`, one that never got an engine `not started`.

    late: why the run ended before its last check, for instance a time limit.
    """
    counts = rec.counts()
    verdict: m.Verdict = "good"
    if stopped is not None and not rec.checks:
        verdict = "not started"
    elif counts.failed or counts.error or stopped is not None:
        verdict = "not good"
    elif interrupted or late:
        verdict = "interrupted"
    elif not counts.passed:
        verdict = "not good"
    if late:
        rec.note(f"{late}: what had not ended by then was not run")
    loads, peak = with_ceilings(rec.loads, bound.preset, bound.machine)
    if peak is not None:
        rec.note(f"ceilings of the workloads are for {peak}")
    return m.Report(
        verdict=verdict,
        headline=_headline(verdict, counts, bound, rec, stopped),
        complete=verdict == "good"
        and not any(c.outcome == "not run" and c.matters for c in rec.checks)
        and not rec.left_out
        and selection is None,
        started=rec.started,
        seconds=round(rec.clock() - rec.begun, 2),
        selection=selection,
        counts=counts,
        bound=bound,
        engine=_plain(facts),
        stopped=None
        if stopped is None
        else {"problem": stopped.problem, "todo": stopped.todo, "tail": stopped.tail},
        checks=rec.checks,
        boots=rec.boots,
        acceptance=rec.acceptance,
        loads=loads,
        depths=rec.depths,
        memory=rec.memory,
        notes=rec.notes,
    )


def _headline(v: m.Verdict, c: m.Counts, b: m.Bound, rec: Recorder, stopped: SmokeError | None) -> str:
    what = f"{b.preset} on {b.hardware}"
    if stopped is not None and v == "not started":
        return f"{what}: the engine did not start. {stopped.problem}."
    ran = f"{c.passed} passed, {c.failed + c.error} failed, {c.not_run} not run"
    if v == "good":
        rest = (
            f" ({c.not_run} checks could not be asked of this target; they are listed)" if c.not_run else ""
        )
        return f"{what} works: {ran}{rest}."
    if v == "interrupted":
        return f"{what}: interrupted after {len(rec.checks)} checks. {ran}."
    if not c.passed and not (c.failed or c.error):
        return f"{what}: nothing was tested."
    return f"{what} is not good: {ran}."


def bound(
    subject: Subject,
    facts: EngineFacts | None,
    profile: Profile,
    target: Any,
    *,
    seed: int,
    label: str | None,
    logs: Iterable[str] = (),
) -> m.Bound:
    """What the report binds to. A url's hardware is unknown unless the operator says it.

    logs: those of the run's boots; the launcher says in them what `--force` overrode (launch/admission.py).
    """
    ours = target.kind != "url"
    names, driver = hardware.gpus() if ours else ([], None)
    on_cpu = bool(facts and facts.on_cpu)
    versions = hardware.versions() if target.kind == "process" else {}
    if facts and facts.version:
        versions["sglang"] = facts.version
    ident = target.identity()
    return m.Bound(
        preset=subject.name,
        preset_sha256=subject.sha256,
        preset_status=subject.status,
        machine=subject.machine,
        target=subject.target,
        target_revision=subject.target_revision,
        draft=subject.draft,
        draft_revision=subject.draft_revision,
        image=ident.image,
        image_digest=ident.image_digest,
        hardware=label or (hardware.describe(on_cpu) if ours else "unknown (a server given by --url)"),
        gpu=[] if on_cpu else names,
        driver=driver,
        versions=versions,
        seed=seed,
        profile=profile.name,  # type: ignore[arg-type]
        target_kind=target.kind,
        forced=forced_reasons(logs) if target.has_log else None,
    )


def forced_reasons(logs: Iterable[str]) -> list[str]:
    """What admission said against the starts, each reason once."""
    said = (
        re.findall(r"^.*?admission: started by force although: (.+)$", text, re.MULTILINE) for text in logs
    )
    return list(dict.fromkeys(reason.strip() for reasons in said for reason in reasons))


def _plain(facts: EngineFacts | None) -> dict[str, Any]:
    if facts is None:
        return {}
    d = dataclasses.asdict(facts)
    log = d.pop("log", None)
    d |= {k: _portable(v) for k, v in d.items() if isinstance(v, str)}
    d["memory"] = dict(d.get("memory") or {})
    if log:
        log["decodes"] = log["decodes"][-20:]
    return d | {"log": log}


def _portable(text: str) -> str:
    """A report is read elsewhere: the folders of this machine's fixtures and user are named, not spelt out."""
    from launch.paths import fixtures_dir

    for path, name in ((str(fixtures_dir()), "$SPARKSERVE_FIXTURES"), (str(Path.home()), "~")):
        if text == path or text.startswith(path + "/"):
            return name + text[len(path) :]
    return text


def _r(x: float | None) -> float | None:
    return None if x is None else round(x, 4)


class MemoryWatch:
    """Samples a target's available memory in a thread of its own until stopped."""

    def __init__(self, read: Callable[[], int | None], rec: Recorder, every: float = 1.0) -> None:
        self.read, self.rec, self.every = read, rec, every
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="memory-watch")

    def __enter__(self) -> MemoryWatch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.thread.join(5)

    def _run(self) -> None:
        while True:
            value = self.read()
            if value is None:
                return
            self.rec.memory_point(value)
            if self.end.wait(self.every):
                return
