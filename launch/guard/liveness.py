"""Is the engine alive? A real generation decides, with a deadline that grows with the work in front of it.

`/health` answers while the scheduler hangs (pains.md 22), so a one-token generation is asked for. It waits in the same queue as
everything else: behind a long prefill it may rightly take minutes. So the deadline is computed from what is queued and
running, and any progress the engine's own counters show counts as life.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """What the engine has before it, from its metrics. Counters only ever grow; tokens and requests."""

    running: int = 0
    queued: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    pending_prompt_tokens: int = 0


@dataclass(frozen=True)
class Pace:
    """The slowest we call healthy. Published GB10 prefill is 928 to 2,500 tokens/s (facts.md 3.2): a tenth of the least."""

    base_s: float = 60.0
    prefill_tokens_per_s: float = 90.0
    per_request_s: float = 5.0

    def deadline_s(self, work: Work, longest_prompt: int) -> float:
        """Seconds a one-token probe may take: the queue's prompts at the slowest pace.

        `longest_prompt` (tokens; the context length when unknown) stands in for each request whose prompt is not known.
        """
        waiting = max(work.pending_prompt_tokens, longest_prompt if work.running or work.queued else 0)
        requests = work.running + work.queued
        return self.base_s + waiting / self.prefill_tokens_per_s + requests * self.per_request_s


@dataclass
class Liveness:
    """Judge probes. `hung` becomes true when a probe has been out for its whole deadline and nothing has moved since."""

    pace: Pace
    longest_prompt: int
    _sent: float | None = None
    _deadline: float = 0.0
    _moved: float = 0.0
    _work: Work = field(default_factory=Work)

    @property
    def waiting(self) -> bool:
        return self._sent is not None

    @property
    def last_work(self) -> Work:
        return self._work

    def probe_sent(self, t: float, work: Work) -> float:
        """Note that a probe left at `t`; the answer is its deadline in seconds."""
        if self._sent is None:  # a probe after one that got no answer does not start the clock again
            self._sent = self._moved = t
        self._work = work
        self._deadline = self.pace.deadline_s(work, self.longest_prompt)
        return self._deadline

    def probe_answered(self) -> None:
        self._sent = None

    def progress(self, t: float, work: Work) -> None:
        """Counters read while the probe is out: any that grew is a sign of life, and more work means more patience."""
        if work.prompt_tokens_total > self._work.prompt_tokens_total or (
            work.generated_tokens_total > self._work.generated_tokens_total
        ):
            self._moved = t
        self._deadline = max(self._deadline, self.pace.deadline_s(work, self.longest_prompt))
        self._work = work

    def hung(self, t: float) -> bool:
        return self._sent is not None and t - max(self._sent, self._moved) >= self._deadline
