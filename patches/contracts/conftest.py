"""Settings shared by every contract file.

A contract file is `test_pNN_short_name.py`. Each of its tests fails on the released engine and passes
on the patched one, except those marked `guard`: they hold the default path still and pass on both.
Which engine is tested is decided by PYTHONPATH alone (a directory that holds `sglang/`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before anything imports the engine: no network, and no thread storm on a small machine.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from patches.contracts import support


def pytest_configure(config: pytest.Config) -> None:
    expected = os.environ.get("SPARK_CONTRACT_ENGINE")
    if expected and Path(support.engine_location()).resolve() != Path(expected).resolve():
        pytest.exit(f"the engine under test is {support.engine_location()}, not {expected}", returncode=4)
    config.addinivalue_line(
        "markers", "guard: the default path is unchanged; passes on the released engine too"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.contract)
            if item.get_closest_marker("guard"):
                item.user_properties.append(("guard", "yes"))  # read by `python -m patches contracts`


def pytest_report_header() -> str:
    return f"engine under test: {support.engine_location()}"


@pytest.fixture
def engine() -> Iterator[None]:
    """The engine with default arguments published and one-rank gloo groups; the context is restored.

    A test that needs other arguments calls `support.publish_args(...)` itself after this.
    """
    support.init_engine()
    yield
    support.publish_args()


@pytest.fixture
def sm121(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capability (12, 1), as on a GB10, for code that only asks torch about it."""
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_a, **_k: (12, 1))


@pytest.fixture
def tiny(tmp_path: Path) -> support.TinyModels:
    """Writer of tiny model directories below this test's own directory."""
    return support.TinyModels(tmp_path)
