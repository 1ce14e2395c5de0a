"""Run the suite against the mock, once healthy per model and once per fault, and print the outcomes as JSON.

A program of its own: pytest inside pytest shares too much. `tests/smoke/test_faults.py` starts it once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from smoke.mock.faults import FAULTS, Fault
from smoke.mock.state import State, oracle
from smoke.mock.target import SUBJECT, MockServer, MockTarget
from smoke.plugin import CHECKS, run
from smoke.profiles import Load, Profile
from smoke.record import MemoryWatch, Recorder
from smoke.session import Limits, Session

# Everything at least once, small enough to run a hundred times.
TINY = Profile("soak", 2, (Load(1000, 128, 4),), 600, (64, 256, 900), 48, 4, 48, 20.0, 0.0)
LIMITS = Limits(cancel_s=0.4, idle_s=5.0, comeback_s=0.6, poll_s=0.01, soak_slope=1e6, soak_least=1e6)
DEADLINES = {"port": 5.0, "ready": 5.0, "tokens": 5.0}


def session(fault: Fault | None, planted: bool, supervised: bool) -> Session:
    state = State(planted=planted, faults=frozenset([fault.name] if fault else []))
    target = MockTarget(MockServer(state), supervised)
    subject = (
        SUBJECT if planted else replace(SUBJECT, status="validated", accept_length=None, chat_answer=None)
    )
    s = Session(subject, TINY, target, Recorder(), 1, LIMITS, DEADLINES, say=lambda _: None)
    s.oracle_override = oracle(state.tokenizer)
    return s


def outcome(fault: Fault | None, planted: bool = True, supervised: bool = False) -> list[dict[str, object]]:
    s = session(fault, planted, supervised)
    assert isinstance(s.target, MockTarget)
    with MemoryWatch(s.target.memory_available, s.rec, every=0.01):
        s.start()
        s.target.s.armed = True
        s.memo["soak from"] = "0"  # the check of its memory is also run alone
        if fault is None:
            run(s)
        else:
            file, _, test = fault.check.partition("::")
            run(s, select=fault.select or None, extra=(f"{CHECKS / file}::{test}",))
    s.close()
    s.target.server.close()
    return [c.model_dump() for c in s.rec.checks]


def main() -> None:
    """Arguments: names of faults or assertions (default all), and `--part=I/N` for the I-th of N shares."""
    part = next((a[7:].split("/") for a in sys.argv[1:] if a.startswith("--part=")), ["0", "1"])
    share, shares = int(part[0]), int(part[1])
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    jobs: list[tuple[str, Fault | None, bool, bool]] = []
    if not names:
        jobs = [("healthy planted", None, True, False), ("healthy capable", None, False, True)]
    chosen = [f for f in FAULTS if not names or f.name in names or f.ident in names]
    jobs += [(f"{f.name} -> {f.ident}", f, f.planted, f.supervised) for f in chosen]
    out = {key: outcome(*rest) for key, *rest in jobs[share::shares]}
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
