from __future__ import annotations

import sys

import pytest

HEAVY = ("torch", "sglang", "transformers")
MAY = ("engine", "contract", "gpu")  # markers of tests that import those


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ring one is under a minute only while collecting it imports nothing heavy, once in each worker."""
    found = [name for name in HEAVY if name in sys.modules]
    if found and session.items and not any(item.get_closest_marker(m) for item in session.items for m in MAY):
        raise pytest.UsageError(
            f"collecting these tests imported {', '.join(found)}: import in the test, or use tests/lazy.py"
        )
