from __future__ import annotations

import sys

import pytest

HEAVY = ("torch", "sglang", "transformers")
MAY = ("engine", "contract", "gpu")  # markers of tests that import those


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell xdist (`--dist loadgroup`) what stays together: whatever shares a server, an image or an unpacked wheel.

    Containers and contracts are one group each, other tests of ring two a group per folder (engine) or file (suite).
    Tests of ring one go anywhere.
    """
    for item in items:
        if item.get_closest_marker("container"):
            group = "container"
        elif item.get_closest_marker("contract"):
            group = "contract"
        elif item.get_closest_marker("engine"):
            group = f"engine-{item.path.parent.name}"
        elif item.get_closest_marker("suite"):
            group = f"suite-{item.path.parent.name}-{item.path.stem}"
        else:
            continue
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ring one is under a minute only while collecting it imports nothing heavy, once in each worker."""
    found = [name for name in HEAVY if name in sys.modules]
    if found and session.items and not any(item.get_closest_marker(m) for item in session.items for m in MAY):
        raise pytest.UsageError(
            f"collecting these tests imported {', '.join(found)}: import in the test, or use tests/lazy.py"
        )
