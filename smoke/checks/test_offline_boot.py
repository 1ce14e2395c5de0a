"""Offline boot: with the network forbidden, the pinned checkpoints are found in the cache."""

from __future__ import annotations

import pytest

from smoke.errors import SmokeError, expect
from smoke.session import Session
from smoke.targets import Boot

# Each of these starts the engine again: minutes on a real checkpoint.
pytestmark = [pytest.mark.needs("life"), pytest.mark.profile("full"), pytest.mark.boots]


def test_starts_offline(s: Session) -> None:
    """It starts and answers without network (a container has none; a process is told HF_HUB_OFFLINE=1)"""
    problem = s.memo.pop("offline", None)  # what the second boot, made offline, came to
    if problem is None:
        problem = ""
        try:
            s.start(Boot(offline=True), "offline boot")
        except SmokeError as e:
            problem = e.problem
            s.down = "after the offline boot"
    expect(
        "offline.start",
        not problem,
        f"the offline start failed: {problem}",
        "pull by revision leaves no refs/main: pin target and draft revision (sparkserve pull, then serve)",
    )
    if (
        network := s.target.network()
    ) is not None:  # a process shares the host's, and is only told to stay offline
        s.rec.note(f"offline boot: the container's network is {network}")
        expect(
            "offline.cut",
            network.startswith("lo only"),
            f"the offline boot still had a network: {network}",
            "the boot proves nothing then: run it in a container with network none",
        )
    made = s.engine.generate("The", 5).made
    expect("offline.tokens", made == 5, f"asked for 5 tokens, got {made}", "read the offline start's log")
