"""Send a workload and measure it: tokens from the engine's usage, never from the number of events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from smoke.engine.client import Engine
from smoke.errors import CheckFailed
from smoke.workload.prompts import Prompt


@dataclass(frozen=True)
class Sample:
    """One request. Seconds; tokens by the engine's own count; accept_length None without speculation."""

    prompt: int
    asked: int
    made: int
    cached: int
    ttft: float
    total: float
    accept_length: float | None
    ids: tuple[int, ...] = ()

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first token."""
        span = self.total - self.ttft
        return (self.made - 1) / span if self.made > 1 and span > 0 else None


@dataclass(frozen=True)
class Result:
    """A workload's outcome. `seconds` is the wall time from the first request to the last answer."""

    samples: tuple[Sample, ...]
    seconds: float
    errors: tuple[str, ...] = field(default=())

    @property
    def made(self) -> int:
        return sum(s.made for s in self.samples)

    @property
    def throughput(self) -> float:
        """Generated tokens per second over all streams, prefill included."""
        return self.made / self.seconds if self.seconds > 0 else 0.0

    @property
    def ttft(self) -> float | None:
        return statistics.median(s.ttft for s in self.samples) if self.samples else None

    @property
    def latency(self) -> float | None:
        return statistics.median(s.total for s in self.samples) if self.samples else None

    @property
    def decode_rate(self) -> float | None:
        rates = [r for s in self.samples if (r := s.decode_rate) is not None]
        return statistics.median(rates) if rates else None

    @property
    def accept_length(self) -> float | None:
        values = [s.accept_length for s in self.samples if s.accept_length is not None]
        return statistics.fmean(values) if values else None


def one(engine: Engine, prompt: Prompt, tokens: int, timeout: float) -> Sample:
    g, ttft, total = engine.timed(list(prompt.ids), tokens, timeout)
    accept = g.meta.get("spec_accept_length")
    return Sample(
        prompt=int(g.meta.get("prompt_tokens", 0)),
        asked=tokens,
        made=g.made,
        cached=int(g.meta.get("cached_tokens") or 0),
        ttft=ttft,
        total=total,
        accept_length=None if accept is None else float(accept),
        ids=tuple(g.ids),
    )


def run(engine: Engine, prompts: Sequence[Prompt], tokens: int, timeout: float) -> Result:
    """All prompts at once, one thread each. An error of one request does not hide the others."""
    samples: list[Sample] = []
    errors: list[str] = []
    begun = time.perf_counter()
    with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
        jobs = [pool.submit(one, engine, p, tokens, timeout) for p in prompts]
        for job in jobs:
            try:
                samples.append(job.result())
            except CheckFailed as e:
                errors.append(e.problem)
    return Result(tuple(samples), time.perf_counter() - begun, tuple(errors))
