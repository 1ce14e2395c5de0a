"""Second boot: nothing is compiled again, and the engine is the same one."""

from __future__ import annotations

import pytest

from smoke.errors import SmokeError, expect
from smoke.session import Session
from smoke.targets import Boot

# Each of these starts the engine again: minutes on a real checkpoint.
pytestmark = [pytest.mark.needs("life"), pytest.mark.profile("full"), pytest.mark.boots]


def _second_boot(s: Session) -> None:
    """To a process, offline is only a word in its environment: one boot then serves this group and the offline one."""
    if s.target.kind == "process":
        try:
            s.start(Boot(offline=True, no_compile=True), "second boot, offline")
        except SmokeError as e:
            s.memo["offline"] = e.problem
        else:
            s.memo["offline"] = ""
            return
    s.start(Boot(no_compile=True), "second boot")


def test_compiles_nothing(s: Session) -> None:
    """A second boot compiles no kernel"""
    before = s.target.kernels()
    text = s.memo.pop(
        "colour", None
    )  # left by a check that ended the first boot, so that no boot is spent on asking
    if text is None:
        s.revive()
        text = s.colour()
    _second_boot(s)
    again = s.colour()
    named = s.facts.log.compiled if s.facts.log else []
    expect(
        "boot2.log",
        not named,
        f"the second boot compiled {', '.join(named)[:200]}",
        "the cache is not kept or its key changed: mount the cache volume, keyed by image, GPU and driver",
    )
    after = s.target.kernels()
    new = (
        sorted(k for k, t in (after or {}).items() if (before or {}).get(k) != t)
        if before is not None
        else []
    )
    expect(
        "boot2.files",
        not new,
        f"{len(new)} compiled object(s) appeared: {', '.join(new)[:200]}",
        "the cache is not kept or its key changed: mount the cache volume, keyed by image, GPU and driver",
    )
    expect(
        "boot2.same",
        again == text,
        f"first boot said {text!r}, second {again!r}",
        "autotuning drew other tactics: keep its cache, or switch it off for reproducible output",
    )
