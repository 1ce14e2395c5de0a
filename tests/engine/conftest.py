"""One server for the session; the fixtures it serves are built first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .server import Server, draft_args, fixture_root


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The directory with the core fixtures."""
    return fixture_root()


@pytest.fixture(scope="session")
def server(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """qwen38-w4a4 with its DFlash2 draft."""
    log = tmp_path_factory.mktemp("engine") / "server.log"
    with Server(fixtures / "qwen38-w4a4", log, *draft_args(fixtures / "dflash2")) as s:
        yield s
