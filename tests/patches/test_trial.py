"""try: a truthful report about another release."""

from __future__ import annotations

import json

import pytest

from patches import cli, trial
from tests.patches.conftest import ALPHA, BETA, Mini

OTHER = "sglang-0.5.24-py3-none-any.whl"


def results(mini: Mini, **files: str | None) -> dict[str, trial.Trial]:
    wheel = mini.release(OTHER, **files)
    return {t.id: t for t in trial.try_series(mini.series, wheel).trials}


def test_the_same_files_apply(mini: Mini) -> None:
    got = results(mini)
    assert [t.result for t in got.values()] == ["applies", "applies", "applies", "upstream"]
    assert not any(t.details for t in got.values() if t.result == "applies")


def test_moved_code_applies_with_its_offset(mini: Mini) -> None:
    got = results(mini, alpha="# one\n# two\n" + ALPHA)
    assert got["P01"].result == "applies"
    assert got["P01"].details == ("sglang/alpha.py: hunk 1 applies +2 lines away",)


def test_a_patch_that_is_already_in_is_absorbed_and_the_next_still_applies(mini: Mini) -> None:
    got = results(mini, alpha=ALPHA.replace("alpha = 4\n", 'alpha = 4\nalpha = "P01"\n'))
    assert got["P01"].result == "absorbed"
    assert got["P02"].result == "applies"


def test_half_absorbed_is_a_failure_that_says_which_half(mini: Mini) -> None:
    got = results(mini, beta=BETA.replace("return 1", 'return "P02"'), alpha=ALPHA.replace(" 21", " 2121"))
    assert got["P02"].result == "fails"
    assert got["P02"].details[0].startswith("sglang/alpha.py hunk 1 (@@ -19,5 +19,5 @@): fails: context not")
    assert got["P02"].details[1] == "sglang/beta.py hunk 1 (@@ -1,5 +1,5 @@): absorbed"


def test_a_failure_points_at_an_earlier_one_in_the_same_file(mini: Mini) -> None:
    got = results(mini, alpha=ALPHA.replace("alpha = 3\n", "").replace("alpha = 19\n", ""))
    assert got["P01"].result == got["P02"].result == "fails"
    assert "sglang/alpha.py: P01 failed here before, which may be the cause" in got["P02"].details
    assert got["P03"].result == "applies"


def test_a_vanished_file(mini: Mini) -> None:
    got = results(mini, beta=None)
    assert got["P02"].result == "fails"
    assert "sglang/beta.py: no such file" in got["P02"].details


def test_exit_codes_and_json(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = mini.release(OTHER, beta=None)
    root = ["--root", str(mini.root)]
    assert cli.main([*root, "try", "0.5.24", "--wheel", str(wheel), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["version"], data["good"]) == ("0.5.24", False)
    assert cli.main([*root, "try", "0.5.24", "--wheel", str(mini.release(OTHER))]) == 0
    assert cli.main([*root, "try", "0.5.25", "--wheel", str(wheel)]) == 78
    assert "is not a wheel of 0.5.25" in capsys.readouterr().err


def test_a_release_older_than_what_upstream_took_in_lacks_it(mini: Mini) -> None:
    for version, result in (("0.5.9", "lacks"), ("0.5.17", "upstream"), ("0.5.17.post1", "upstream")):
        wheel = mini.release(f"sglang-{version}-py3-none-any.whl")
        report = trial.try_series(mini.series, wheel)
        assert report.trials[-1].result == result
        assert report.good is (result == "upstream")
