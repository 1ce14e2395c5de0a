"""Reports: valid by their schema, bound to what was measured, readable, and comparable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from smoke.cli import main
from smoke.errors import CANNOT_WRITE, SmokeError
from smoke.mock.state import State
from smoke.mock.target import SUBJECT, MockServer, MockTarget
from smoke.profiles import FULL, Load
from smoke.record import MAX_POINTS, Recorder, bound, build
from smoke.report.diff import diff, render
from smoke.report.model import SCHEMA_FILE, Check, Report, schema_text
from smoke.report.plots import draw_all
from smoke.report.write import html, read, write
from smoke.wait import Took
from smoke.workload.load import Result, Sample


def recorder(slow: float = 1.0, failed: bool = False) -> Recorder:
    rec = Recorder()
    rec.boot("first boot", [Took("port", 30.0 * slow), Took("ready", 2.0), Took("tokens", 0.5)])
    rec.boot("second boot", [Took("port", 12.0), Took("ready", 1.0), Took("tokens", 0.2)])
    for i, family in enumerate(("prose", "code", "json", "chat")):
        rec.accept(family, 200, 3.5 + i, 1536, 2.0)
    rec.accept("code", 131_072, 4.1, 512, None)
    for w in FULL.loads:
        s = Sample(w.prompt, w.output, w.output, 0, 0.4 * slow, 9.0 * slow, 4.2)
        r = Result((s,) * w.concurrency, 9.5 * slow)
        rec.load("code", w.name, w.prompt, w.output, r=r, concurrency=w.concurrency)
    for n in (1024, 32_768, 131_072):
        rec.depth(n, n / 5000 * slow, n / 90_000, n - 16, 4.0)
    for i in range(50):
        rec.memory_point((60 - i % 7) * 10**9)
        rec.memory[-1].at = float(i)
    rec.checks = [
        Check(group="chat", name="usage", title="usage counts", outcome="passed", seconds=0.1),
        Check(group="tools", name="auto", title="auto", outcome="not run", seconds=0, reason="planted"),
    ]
    if failed:
        update = {"outcome": "failed", "ident": "chat.usage", "problem": "p <b> & q", "todo": "do this"}
        rec.checks[0] = rec.checks[0].model_copy(update=update)
    rec.note("a note")
    return rec


@pytest.fixture(scope="module")
def target() -> Iterator[MockTarget]:
    server = MockServer(State())
    yield MockTarget(server)
    server.close()


def report(target: MockTarget, slow: float = 1.0, failed: bool = False, **kw: Any) -> Report:
    what = bound(SUBJECT, None, FULL, target, seed=1, label="a machine")
    return build(recorder(slow, failed), what, None, kw.pop("select", None), **kw)


def test_schema_in_the_repository_is_the_models() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run python -m smoke.report.model"


def test_report_keeps_to_its_schema(target: MockTarget) -> None:
    data = json.loads(report(target).model_dump_json())
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, schema)
    data["bound"]["preset_sha256"] = "short"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_report_is_bound_to_what_was_measured(target: MockTarget) -> None:
    b = report(target).bound
    assert (b.preset, b.preset_sha256) == (SUBJECT.name, SUBJECT.sha256)
    assert (b.target_revision, b.draft_revision) == ("a" * 40, "b" * 40)
    assert b.image_digest == "sha256:" + "d" * 64
    assert (b.seed, b.profile, b.target_kind, b.hardware) == (1, "full", "process", "a machine")


def test_verdicts(target: MockTarget) -> None:
    good = report(target)
    assert (good.verdict, good.complete) == ("good", False)  # something that matters was not run
    rec_all = recorder()
    rec_all.checks[1] = rec_all.checks[1].model_copy(update={"matters": False})
    assert build(rec_all, good.bound, None, None).complete
    assert not build(rec_all, good.bound, None, "chat").complete
    assert report(target, failed=True).verdict == "not good"
    assert report(target, interrupted=True).verdict == "interrupted"
    assert not report(target, select="chat").complete
    rec = Recorder()
    what = bound(SUBJECT, None, FULL, target, seed=1, label=None)
    assert build(rec, what, None, None, stopped=SmokeError("p", "t")).verdict == "not started"
    empty = build(rec, what, None, None)
    assert (empty.verdict, "nothing was tested" in empty.headline) == ("not good", True)


def test_not_run_is_not_passed(target: MockTarget) -> None:
    c = report(target).counts
    assert (c.passed, c.not_run) == (1, 1)


def test_page_stands_alone_and_escapes(target: MockTarget) -> None:
    page = html(report(target, failed=True))
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page.replace("xlink:", ""))
    assert "<script" not in page
    assert "p &lt;b&gt; &amp; q" in page
    assert page.index("What failed") < page.index("Measured") < page.index("What this holds for")


def test_every_plot_is_drawn_and_none_twice(target: MockTarget) -> None:
    plots = draw_all(report(target))
    assert all(p.svg.startswith("<svg") for p in plots)
    ids = [i for p in plots for i in re.findall(r'\bid="([^"]+)"', p.svg)]
    assert len(ids) == len(set(ids))
    for p in plots:
        marks = len(re.findall(r"<(?:path|use)\b", p.svg))
        assert marks > 10, f"{p.title} is blank"
        assert "#010203" not in p.svg


def test_a_plot_without_data_says_why(target: MockTarget) -> None:
    what = bound(SUBJECT, None, FULL, target, seed=1, label=None)
    empty = build(Recorder(), what, None, None)
    assert all(p.why and not p.svg for p in draw_all(empty))
    assert html(empty).count("Not measured:") == 6


WHY = "needs 101.0 GiB & leaves 3.0"


@pytest.mark.parametrize("reasons", [[WHY], []])
def test_a_start_by_force_stands_in_report_and_page(target: MockTarget, reasons: list[str]) -> None:
    words = "".join(f"admission: started by force although: {r}\n" for r in reasons)
    logs = [target.log() + words, target.log() + words]  # two boots say it, the report once
    what = bound(SUBJECT, None, FULL, target, seed=1, label=None, logs=logs)
    r = build(recorder(), what, None, None)
    assert json.loads(r.model_dump_json())["bound"]["forced"] == reasons
    page = html(r)
    assert ("Started by --force although:" in page) is bool(reasons)
    assert page.count("needs 101.0 GiB &amp; leaves 3.0") == 2 * len(reasons)
    assert ("<dd>not forced</dd>" in page) is (not reasons)


def test_without_a_log_nothing_is_said_of_force(target: MockTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "has_log", False)
    what = bound(SUBJECT, None, FULL, target, seed=1, label=None)
    assert what.forced is None
    assert "<dt>admission</dt>" not in html(build(recorder(), what, None, None))


def test_memory_points_do_not_grow_without_end() -> None:
    rec = Recorder()
    for i in range(5 * MAX_POINTS):
        rec.memory_point(i)
    assert len(rec.memory) <= MAX_POINTS
    assert rec.memory[0].available == 0
    assert rec.memory[-1].available == 5 * MAX_POINTS - 1


def test_write_and_read_back(target: MockTarget, tmp_path: Path) -> None:
    r = report(target)
    files = write(r, tmp_path / "r")
    assert sorted(p.name for p in files) == ["report.html", "report.json"]
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["report.html", "report.json"]
    assert read(tmp_path / "r") == r


def test_unwritable_place_is_one_line(target: MockTarget, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SmokeError, match="cannot write") as e:
        write(report(target), tmp_path / "file" / "r")
    assert e.value.code == CANNOT_WRITE


def test_diff_of_equals_is_empty(target: MockTarget) -> None:
    r = report(target)
    assert diff(r, r).empty
    assert render(diff(r, r)) == "No difference worth a line."


def test_diff_names_what_got_worse(target: MockTarget) -> None:
    a, b = report(target), report(target, slow=2.0, failed=True)
    b.bound.preset_sha256 = "1" * 64
    d = diff(a, b)
    assert d.worse == ["chat/usage: p <b> & q"]
    assert any("preset_sha256" in x for x in d.binding)
    assert any(x.startswith("tokens/s 1000/1000@4:") and "-50%" in x for x in d.moved)
    assert diff(b, a).better == ["chat/usage: passed"]


def test_a_check_that_is_no_longer_run_counts_as_worse(target: MockTarget) -> None:
    a, b = report(target), report(target)
    b.checks[0] = b.checks[0].model_copy(update={"outcome": "not run", "reason": "r"})
    assert diff(a, b).worse == ["chat/usage: passed -> not run"]


def test_report_commands(target: MockTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(report(target), tmp_path / "a")
    write(report(target, failed=True), tmp_path / "b")
    assert main(["report", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "Worse:" in capsys.readouterr().out
    assert main(["report", "diff", str(tmp_path / "b"), str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worse"] == []
    (tmp_path / "a" / "report.html").unlink()
    assert main(["report", "html", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a" / "report.html").stat().st_size > 10_000
    assert main(["report", "schema"]) == 0
    (tmp_path / "no.json").write_text("{}")
    assert main(["report", "diff", str(tmp_path / "no.json"), str(tmp_path / "a")]) == 1
    assert "is not a smoke report" in capsys.readouterr().err
    assert main(["report", "html", str(tmp_path / "gone.json")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_workload_names() -> None:
    assert Load(1000, 128, 4).slug == "1000-128-x4"


def test_a_report_spells_out_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from smoke.record import _portable

    monkeypatch.setenv("SPARKSERVE_FIXTURES", "/somewhere/fx")
    monkeypatch.setenv("HOME", "/home/me")
    assert _portable("/somewhere/fx/qwen38-w4a4") == "$SPARKSERVE_FIXTURES/qwen38-w4a4"
    assert _portable("/home/me/models/x") == "~/models/x"
    assert _portable("/home/mela/x") == "/home/mela/x"
    assert _portable("flashinfer") == "flashinfer"
