"""Every contract on the released and on the patched engine; tests/conftest.py prints what each gave at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from patches import basewheel, runner, series
from patches.runner import Verdict

pytestmark = pytest.mark.contract

SERIES = series.load()
WITH_CONTRACT = [p for p in SERIES.patches if p.contract]


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], Verdict]:
    """Both runs, once: two processes that import the engine, some minutes on two cores."""
    trees = runner.trees(SERIES, basewheel.base_wheel(SERIES))
    found = [v for engine in runner.ENGINES for v in runner.run(WITH_CONTRACT, engine, trees[engine])]
    return {(v.patch, v.engine): v for v in found}


@pytest.mark.parametrize("engine", runner.ENGINES)
@pytest.mark.parametrize("ident", [p.id for p in WITH_CONTRACT])
def test_contract(
    verdicts: dict[tuple[str, str], Verdict],
    ident: str,
    engine: str,
    record_property: Callable[[str, object], None],
) -> None:
    verdict = verdicts[ident, engine]
    version = SERIES.version if engine == runner.RELEASED else SERIES.spark_version
    record_property("contract", f"{ident}  sglang {version:<16} {verdict.summary}")
    assert verdict.ok, "\n".join(verdict.wrong)
