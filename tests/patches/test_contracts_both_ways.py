"""Every contract on the released and on the patched engine, with the table in the test's output."""

from __future__ import annotations

import pytest

from patches import basewheel, cli, runner, series
from patches.runner import Verdict

pytestmark = pytest.mark.contract

SERIES = series.load()
WITH_CONTRACT = [p for p in SERIES.patches if p.contract]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> dict[tuple[str, str], Verdict]:
    """Both runs, once: two processes that import the engine, some minutes on two cores."""
    trees = runner.trees(SERIES, basewheel.base_wheel(SERIES))
    found = [v for engine in runner.ENGINES for v in runner.run(WITH_CONTRACT, engine, trees[engine])]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n\ncontracts on sglang {SERIES.version} as released and on {SERIES.spark_version}")
        cli.print_verdicts(found)
    return {(v.patch, v.engine): v for v in found}


@pytest.mark.parametrize("engine", runner.ENGINES)
@pytest.mark.parametrize("ident", [p.id for p in WITH_CONTRACT])
def test_contract(verdicts: dict[tuple[str, str], Verdict], ident: str, engine: str) -> None:
    verdict = verdicts[ident, engine]
    assert verdict.ok, "\n".join(verdict.wrong)
