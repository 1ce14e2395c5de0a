"""Real memory pressure: a hundred servers that allocate in random patterns, in a container with a memory limit.

Set SPARKSERVE_EVIDENCE to a folder to keep what was measured: pressure.json.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

SEEDS = 100
LIMIT = 512 << 20
POLL_S = 0.05  # launch.guard.group: how often it looks whether the family is gone


@pytest.fixture(scope="module")
def ran(client, image):
    """One container, all seeds; what the driver measured."""
    folder = Path(__file__).parent / "pressure"
    c = client.containers.run(
        image,
        ["/pressure/driver.py", str(SEEDS)],
        entrypoint=["/opt/venv/bin/python"],
        detach=True,
        network_mode="none",
        cap_drop=["ALL"],
        read_only=True,
        mem_limit=LIMIT,
        memswap_limit=LIMIT,
        tmpfs={"/run/spark": "uid=10001,gid=10001", "/tmp": ""},
        volumes={str(folder): {"bind": "/pressure", "mode": "ro"}},
        environment={"PYTHONPATH": "/opt/sparkserve"},
    )
    try:
        code = c.wait(timeout=600)["StatusCode"]
        said = c.logs().decode(errors="replace")
    finally:
        c.remove(force=True, v=True)
    assert code == 0, said[-3000:]
    found = json.loads(said.strip().splitlines()[-1])
    if keep := os.environ.get("SPARKSERVE_EVIDENCE"):
        counts = Counter(f"{row['phase']} ({row['reason'] or row['pattern']})" for row in found["rows"])
        hardware = {
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "container_limit_bytes": LIMIT,
        }
        kept = {
            "program": "pytest tests/image/test_pressure.py",
            "hardware": hardware,
            "counts": counts,
            **found,
        }
        (Path(keep) / "pressure.json").write_text(json.dumps(kept, indent=1) + "\n")
    return found


def test_every_seed_ran_and_ended_as_it_should(ran):
    assert len(ran["rows"]) == SEEDS
    for row in ran["rows"]:
        want = ("stopped", None) if row["pattern"] == "well-behaved" else ("tripped", "floor")
        assert (row["phase"], row["reason"]) == want, row


def test_hard_floor_is_never_crossed_by_more_than_one_step(ran):
    """Half the floor trips at once. What can be taken between two looks, and until the kill, is all that may go below it.

    The step is the longest one this run really had: on a busy machine the guard gets its turn late.
    """
    for row in ran["rows"]:
        step = max(ran["period"], row["longest_step"]) + 2 * POLL_S
        assert row["least"] >= ran["floor"] // 2 - ran["rate"] * step, row


def test_the_kernel_never_had_to_kill(ran):
    assert ran["oom_kills"] == 0


def test_no_orphan_is_left(ran):
    assert [row for row in ran["rows"] if row["left"]] == []


def test_state_survives_every_run(ran):
    assert ran["survived"] == SEEDS
