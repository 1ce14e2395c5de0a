"""A run that is cut still leaves its report, and several presets run side by side."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smoke.cli import main
from smoke.errors import ENGINE, INTERRUPTED, USAGE
from smoke.limit import TimeLimit, TimeUp
from smoke.mock.state import State
from smoke.mock.target import SUBJECT, MockServer, MockTarget
from smoke.plugin import run
from smoke.profiles import QUICK
from smoke.record import Recorder
from smoke.report.write import redact, shorten, write_logs
from smoke.session import Session
from smoke.several import PORT_STEP, own_caches
from smoke.several import main as several

ROOT = Path(__file__).parents[2]


def wait(seconds: float = 20.0) -> None:
    """Sleep until something interrupts it."""
    time.sleep(seconds)


def test_the_ring_ends_what_may_be_ended() -> None:
    cuts: list[int] = []
    with TimeLimit(0.05, lambda: cuts.append(1)) as limit:
        with pytest.raises(TimeUp), limit.interruptible():
            wait()
        assert limit.passed
        with pytest.raises(TimeUp), limit.interruptible():
            pytest.fail("nothing begins after the ring")
    assert cuts == [1]


def test_the_ring_elsewhere_only_marks() -> None:
    with TimeLimit(0.05) as limit:
        while not limit.passed:
            time.sleep(0.01)


def test_no_limit_never_rings() -> None:
    with TimeLimit() as limit, limit.interruptible():
        assert not limit.passed


def test_a_check_that_is_cut_and_those_after_it_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MockServer(State(armed=True, boots=1))
    target = MockTarget(server)
    s = Session(SUBJECT, QUICK, target, Recorder(), say=lambda _: None)
    s.limit = TimeLimit(30.0, target.cut)
    s.start()

    def ring(*_: Any, **__: Any) -> None:
        s.limit._ring()

    monkeypatch.setattr(s.engine, "completion", ring)
    with s.limit:
        run(s, "test_chat.py")
    s.close()
    server.close()
    by = {c.name: c for c in s.rec.checks}
    assert by["visible_answer"].outcome == "passed"
    assert (by["completions"].outcome, by["completions"].reason) == (
        "not run",
        "the time limit of 30 s passed during this check",
    )
    assert by["official_client"].reason == "the time limit of 30 s passed"
    assert not server.state.alive, "the ring breaks what is in flight"


class Rings(TimeLimit):
    """Rings as the third check begins: the start and two checks (set-up and call) are let through."""

    entered = 0

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        self.entered += 1
        if self.entered == 6:
            self._ring()
        with super().interruptible():
            yield


def test_a_cut_run_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = MockServer(State(armed=True, boots=1))
    monkeypatch.setattr("smoke.cli.TimeLimit", Rings)
    code = main(["--url", server.url, "--report", str(tmp_path), "--time-limit", "60", "-k", "json_schema"])
    server.close()
    report = json.loads((tmp_path / "report.json").read_text())
    assert (code, report["verdict"], report["complete"]) == (INTERRUPTED, "interrupted", False)
    assert any("time limit of 60 s" in n for n in report["notes"])
    assert [c["outcome"] for c in report["checks"]] == ["passed"] * 2 + ["not run"] * 3
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert "interrupted after 5 checks" in capsys.readouterr().out


def test_a_start_that_is_cut_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Rings, "entered", 5)
    monkeypatch.setattr("smoke.cli.TimeLimit", Rings)
    code = main(["--url", "http://127.0.0.1:1", "--report", str(tmp_path), "--time-limit", "60"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert (code, report["verdict"]) == (ENGINE, "not started")
    assert "while the engine was starting" in capsys.readouterr().err


def test_a_limit_of_nothing_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1", "--time-limit", "0"]) == USAGE
    assert "is no time" in capsys.readouterr().err


def test_logs_are_kept_without_secrets(tmp_path: Path) -> None:
    log = f"args api_key='s3cret-key' hf_token=hf_abcdefghijklmnopqrstuv {Path.home()}/x\nmax_total_tokens=300000\n"
    log += "#new-token: 1234567, #cached-token: 7654321, token usage: 0.01\n"
    (path,) = write_logs({"1-first boot": log}, tmp_path, "s3cret-key")
    assert path.name == "engine-1-first-boot.log"
    text = path.read_text()
    assert "s3cret" not in text
    assert "hf_abc" not in text
    assert str(Path.home()) not in text
    assert "max_total_tokens=300000" in text
    assert "#new-token: 1234567, #cached-token: 7654321, token usage: 0.01" in text
    for harmless in (
        "password: None",
        "mask_token=<|MASK|>, x",
        "'hf_chat_template_name': None",
        "max_total_tokens=300000",
    ):
        assert redact(harmless, None) == harmless


def test_a_long_log_keeps_both_ends() -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    short = shorten(text, 200)
    assert len(short) < 260
    assert short.startswith("line 0\n")
    assert short.endswith("line 999\n")
    kept = sum(ln.startswith("line ") for ln in short.splitlines())
    assert f"[... {1000 - kept} lines left out ...]" in short
    assert shorten("short\n") == "short\n"


def test_several_names_a_preset_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert several(["a", "a", "--out", str(tmp_path)]) == USAGE
    assert "named twice" in capsys.readouterr().err


@pytest.mark.suite
def test_several_runs_each_with_its_own_port_and_report(tmp_path: Path) -> None:
    """Two presets that do not exist: each run says so, and the command ends with 1."""
    argv = [
        sys.executable,
        "-m",
        "smoke",
        "several",
        "--out",
        str(tmp_path),
        "nope-a",
        "nope-b",
        "--",
        "--seed",
        "2",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    r = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120, check=False)
    assert r.returncode == 1
    for name in ("nope-a", "nope-b"):
        assert f"{name}: exit 2, no report" in r.stdout
        assert name in (tmp_path / name / "console.txt").read_text()
    assert PORT_STEP > 1000


def test_each_run_begins_with_the_machine_s_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = tmp_path / "common"
    (common / "abc").mkdir(parents=True)
    (common / "abc" / "k.cubin").write_text("x")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(common))
    for variable in ("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "absent"))
    own = own_caches(tmp_path / "own")
    mine = Path(own["TRITON_CACHE_DIR"])
    assert (mine / "abc" / "k.cubin").read_text() == "x"
    (mine / "new.cubin").write_text("y")
    assert not (common / "new.cubin").exists()
    assert set(own) == {"TRITON_CACHE_DIR", "SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR"}
    assert len({*own.values(), str(common)}) == 4
    monkeypatch.delenv("TRITON_CACHE_DIR")  # then the engine puts it under its own
    assert set(own_caches(tmp_path / "more")) == {"SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR"}
