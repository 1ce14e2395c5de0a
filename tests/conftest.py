from __future__ import annotations

import sys
from typing import Any

import pytest

HEAVY = ("torch", "sglang", "transformers")
MAY = ("engine", "contract", "gpu")  # markers of tests that import those


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadscope`: a folder of tests/ stays on one worker, for it shares servers, an image, unpacked wheels.

    The largest folders go first. xdist_group marks would say the same, but xdist 3.8 writes them to a field that pytest 9.2
    no longer reads.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0].rpartition("/")[0]

    return ByFolder(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What every contract gave on both wheels; as properties of the tests the lines come through xdist."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])]
    lines = [v for r in reports for name, v in getattr(r, "user_properties", ()) if name == "contract"]
    if lines:
        terminalreporter.section("contracts on the released and the patched wheel")
        terminalreporter.write_line("\n".join(sorted(lines)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ring one is under a minute only while collecting it imports nothing heavy, once in each worker."""
    found = [name for name in HEAVY if name in sys.modules]
    if found and session.items and not any(item.get_closest_marker(m) for item in session.items for m in MAY):
        raise pytest.UsageError(
            f"collecting these tests imported {', '.join(found)}: import in the test, or use tests/lazy.py"
        )
