"""The contract runner: what counts as behaving, and a real run on a miniature engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patches import cli, runner
from patches.errors import ConfigError
from patches.runner import Case, judge
from patches.series import Patch
from tests.patches.conftest import Mini

CARRIED = Patch("P01", "t", "w", "carried", "d", contract="contracts/test_p01_alpha.py")
UPSTREAM = Patch("A01", "t", "w", "upstream", "d", contract="contracts/test_a01_stays.py", since="0.5.17")


def cases(spec: str) -> list[Case]:
    """`failed passed:guard` -> cases."""
    return [Case(f"t{i}", word.split(":")[0], word.endswith(":guard")) for i, word in enumerate(spec.split())]


@pytest.mark.parametrize(
    ("patch", "engine", "spec", "ok"),
    [
        (CARRIED, "released", "failed failed passed:guard", True),
        (CARRIED, "released", "failed passed", False),  # a contract that the released engine keeps
        (CARRIED, "released", "failed failed:guard", False),  # the default path is not as guarded
        (CARRIED, "released", "failed error", False),  # broke before it could fail by itself
        (CARRIED, "released", "failed skipped", False),
        (CARRIED, "released", "passed:guard", False),  # nothing shows what the patch does
        (CARRIED, "released", "", False),
        (CARRIED, "patched", "passed passed:guard", True),
        (CARRIED, "patched", "passed failed", False),
        (CARRIED, "patched", "passed skipped", False),
        (CARRIED, "patched", "", False),
        (UPSTREAM, "released", "passed passed", True),
        (UPSTREAM, "released", "failed", False),
        (UPSTREAM, "patched", "passed", True),
    ],
)
def test_what_behaving_means(patch: Patch, engine: str, spec: str, ok: bool) -> None:
    verdict = judge(patch, engine, cases(spec))
    assert verdict.ok is ok
    assert verdict.summary.startswith("BAD") is not ok


def test_summaries_count() -> None:
    released = judge(CARRIED, "released", cases("failed failed passed:guard"))
    assert released.summary == "2 of 2 failed, as they must, 1 guards passed"
    assert judge(CARRIED, "patched", cases("passed passed passed:guard")).summary == "3 of 3 passed"


# --- a run ---------------------------------------------------------------------------------------

CONFTEST = """
import os
from pathlib import Path

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "guard: x")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("guard"):
            item.user_properties.append(("guard", "yes"))
"""
ALPHA = """
import pytest


def test_it_has_p01():
    import sglang.alpha
    from pathlib import Path
    assert "P01" in Path(sglang.alpha.__file__).read_text()


class TestGroup:
    @pytest.mark.guard
    def test_the_last_value_is_as_before(self):
        import sglang.alpha
        assert sglang.alpha.alpha == 30
"""
TWO = """
import pytest


@pytest.mark.parametrize("n", [1, 2])
def test_beta(n):
    from sglang import beta
    assert beta.beta() == "P02"
"""
NEW = """
def test_delta():
    from sglang.new import delta
    assert delta.DELTA == 3
"""
STAYS = """
def test_gamma():
    from sglang import beta
    assert beta.gamma() == 2
"""


@pytest.fixture
def contracts(mini: Mini, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(runner, "TREES", tmp_path / "trees")
    path = mini.root / "contracts"
    path.mkdir()
    files = {
        "conftest": CONFTEST,
        "test_p01_alpha": ALPHA,
        "test_p02_two": TWO,
        "test_p03_new": NEW,
        "test_a01_stays": STAYS,
    }
    for name, text in files.items():
        (path / f"{name}.py").write_text(text)
    return path


def run(mini: Mini, *args: str) -> int:
    return cli.main(["--root", str(mini.root), "contracts", "--wheel", str(mini.wheel), *args])


def test_a_series_that_behaves(mini: Mini, contracts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(mini) == 0
    out = capsys.readouterr().out
    rows = [line.split("  ")[0] for line in out.splitlines()]
    assert rows[:5] == ["id", "P01", "P02", "P03", "A01"]
    assert "1 of 1 failed, as they must, 1 guards passed" in out
    assert "2 of 2 failed, as they must" in out
    assert "every contract behaves" in out


@pytest.mark.suite  # eight processes of pytest
def test_each_way_of_misbehaving_is_found(
    mini: Mini, contracts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (contracts / "test_p01_alpha.py").write_text("def test_nothing():\n    assert True\n")
    (contracts / "test_p02_two.py").write_text("from sglang.beta import nowhere\n")
    (contracts / "test_p03_new.py").write_text("def test_delta():\n    import os\n    os._exit(9)\n")
    assert run(mini, "--json") == 1
    got = {
        (v["patch"], v["engine"]): (v["ok"], " ".join(v["wrong"]))
        for v in json.loads(capsys.readouterr().out)["contracts"]
    }
    assert not got["P01", "released"][0]
    assert "test_nothing: passed, must be failed" in got["P01", "released"][1]
    for engine in runner.ENGINES:
        assert "error" in got["P02", engine][1]
        assert "exit code 9 and no report" in got["P03", engine][1]
        assert got["A01", engine] == (True, "")


def test_one_contract_on_one_engine(mini: Mini, contracts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(mini, "p02", "--engine", "patched", "--json") == 0
    (verdict,) = json.loads(capsys.readouterr().out)["contracts"]
    assert (verdict["patch"], verdict["engine"], verdict["passed"]) == ("P02", "patched", 2)


def test_a_hanging_contract_is_ended(mini: Mini, contracts: Path, tmp_path: Path) -> None:
    (contracts / "test_p03_new.py").write_text(
        "import threading\ndef test_delta():\n    threading.Event().wait()\n"
    )
    (verdict,) = runner.run([mini.series.by_id("P03")], "patched", tmp_path, timeout_s=3, root=mini.root)
    assert verdict.wrong
    assert "ended after 3 s" in verdict.wrong[0]


def test_a_contract_that_does_not_exist(mini: Mini, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"P01: contract contracts/test_p01_alpha\.py does not exist"):
        runner.run(mini.series.patches, "patched", tmp_path, root=mini.root)


def test_trees_are_cached_by_content_and_pruned(mini: Mini, tmp_path: Path) -> None:
    root = tmp_path / "trees"
    first = runner.trees(mini.series, mini.wheel, root)
    stamp = (first["patched"] / "sglang" / "alpha.py").stat().st_ino
    assert runner.trees(mini.series, mini.wheel, root) == first
    assert (first["patched"] / "sglang" / "alpha.py").stat().st_ino == stamp
    mini.toml("release = 4", "release = 5")
    second = runner.trees(mini.series, mini.wheel, root)
    assert second["released"] == first["released"]
    assert second["patched"] != first["patched"]
    for i in range(10):
        (root / f"patched-old{i}").mkdir()
    runner.prune(root, set(second.values()))
    assert len(list(root.iterdir())) == 6
    assert all(p.is_dir() for p in second.values())


def test_try_with_contracts_judges_what_was_absorbed_as_upstream(
    mini: Mini, contracts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.patches.conftest import ALPHA as TEXT

    taken = TEXT.replace("alpha = 4\n", 'alpha = 4\nalpha = "P01"\n')
    wheel = mini.release("sglang-0.5.24-py3-none-any.whl", alpha=taken)
    root = ["--root", str(mini.root), "try", "0.5.24", "--wheel", str(wheel), "--contracts", "--json"]
    assert cli.main(root) == 0
    got = json.loads(capsys.readouterr().out)
    assert [p["result"] for p in got["patches"]] == ["absorbed", "applies", "applies", "upstream"]
    assert all(v["ok"] for v in got["contracts"])
    assert len(got["contracts"]) == 8
