"""What the mock's routes and its target share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from smoke.mock.boot import boot_log
from smoke.mock.model import Tokenizer
from smoke.oracle import Oracle, Reference


@dataclass
class State:
    """One mock engine. `armed`: faults of behaviour act (those of the boot act from the start)."""

    planted: bool = True
    faults: frozenset[str] = frozenset()
    armed: bool = False
    control: bool = False
    boots: int = 0
    alive: bool = True
    running: int = 0
    inside: int = 0  # requests that have arrived and were not answered yet
    requests: int = 0
    restarts: int = 0
    grammar_broken: bool = False
    starved: bool = False
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    seen: set[tuple[int, ...]] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, name: str) -> bool:
        return self.armed and name in self.faults

    def log(self) -> str:
        return boot_log(self.faults, self.control, self.boots)

    def enter(self, n: int = 1) -> None:
        with self.lock:
            self.running += n
            self.requests += n > 0


def oracle(tokenizer: Tokenizer) -> Oracle:
    """The mock's own reference: the planted cycle, and its log-probabilities."""
    from smoke.mock.model import logprob, successor, walk

    refs = []
    for name, text in (("cities", "The train to Paris"), ("names", "A message to Alice")):
        ids = tokenizer.encode(text)
        out = walk(ids[-1], 16)
        refs.append(Reference(name, tuple(ids), tuple(out), tuple(logprob(t) for t in out)))
    return Oracle(tuple(successor(i) for i in range(200_000)), tuple(refs), 0.02, 0.25)
