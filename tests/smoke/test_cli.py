"""The command: what goes wrong ends in one clear line and the documented exit code."""

from __future__ import annotations

import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from smoke.cli import main
from smoke.errors import CANNOT_WRITE, ENGINE, NOT_GOOD, OK, USAGE
from smoke.mock.state import State
from smoke.mock.target import MockServer
from smoke.targets.process import free_port


@pytest.fixture
def mock() -> Iterator[MockServer]:
    server = MockServer(State(armed=True, boots=1))
    yield server
    server.close()


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 1, err
    assert err[0].startswith("smoke: ")
    assert "Traceback" not in err[0]
    return err[0]


def test_wrong_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny-w4a4-dflsh2"]) == USAGE
    assert "tiny-w4a4-dflash2" in one_line(capsys)


def test_no_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == USAGE
    assert "name a preset" in one_line(capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--target", "url"], "needs --url"),
        (["p", "--target", "docker", "--url", "http://x"], "does not go with"),
        (["--url", "localhost:3000"], "is not a URL"),
        (["--url", "http://127.0.0.1:1", "--deadline", "coffee=3"], "not understood"),
        (["--url", "http://127.0.0.1:1", "--deadline", "port=soon"], "not understood"),
        (["--url", "http://127.0.0.1:1", "--api-key-file", "/nonexistent"], "cannot read"),
    ],
)
def test_usage(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == USAGE
    assert words in one_line(capsys)


def test_dead_server(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["--url", url, "--deadline", "port=0.2"]) == ENGINE
    line = one_line(capsys)
    assert "nothing listens" in line
    assert url in line


class Slow(BaseHTTPRequestHandler):
    """Green, and never a token: /health answers, /generate does not end until the server is told to."""

    release = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.release.wait(30)

    def log_message(self, *_: object) -> None: ...


def test_slow_server(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        code = main(["--url", f"http://127.0.0.1:{server.server_port}", "--deadline", "tokens=0.3"])
    finally:
        Slow.release.set()
        server.shutdown()
        server.server_close()
    assert code == ENGINE
    line = one_line(capsys)
    assert "phase 'tokens'" in line
    assert "did not end within" in line


def test_unwritable_report_is_said_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").touch()
    assert main(["--url", "http://127.0.0.1:1", "--report", str(tmp_path / "f" / "r")]) == CANNOT_WRITE
    assert "cannot write" in one_line(capsys)


def test_a_good_server(mock: MockServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "j.xml"
    argv = [
        "--url",
        mock.url,
        "-k",
        "startup or json_schema",
        "--report",
        str(tmp_path / "r"),
        "--junit",
        str(junit),
    ]
    assert main([*argv, "--hardware", "a mock", "--note", "said by the operator"]) == OK
    out = capsys.readouterr().out
    assert "smoke: GOOD: anonymous on a mock works" in out
    assert "not run: the target has no log to read" in out
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["selection"] == "startup or json_schema"
    assert not report["complete"]
    assert "said by the operator" in report["notes"]
    assert {c["group"] for c in report["checks"]} == {"startup", "json_schema"}
    assert report["counts"]["not_run"] > 0
    cases = ET.parse(junit).getroot().findall(".//testcase")
    assert len(cases) == len(report["checks"])


def test_json_goes_to_stdout_alone(mock: MockServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", mock.url, "-k", "json_schema", "--json"]) == OK
    got = capsys.readouterr()
    assert json.loads(got.out)["verdict"] == "good"
    assert "ok " in got.err


def test_a_failing_check_ends_with_one_and_says_what_to_do(
    mock: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mock.state.faults = frozenset(["usage-missing"])
    assert main(["--url", mock.url, "-k", "test_usage"]) == NOT_GOOD
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "what to do:" in out
    assert "smoke: NOT GOOD" in out


def test_nothing_selected_is_not_good(mock: MockServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", mock.url, "-k", "no_such_check"]) == NOT_GOOD
    assert "nothing was tested" in capsys.readouterr().out


def test_a_broken_expression_is_usage(mock: MockServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", mock.url, "-k", "((("]) == USAGE
    assert "check its expression" in capsys.readouterr().err


def test_a_server_that_dies_on_the_way_is_said_once(
    mock: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from smoke.mock import faults

    assert "hostile-kills" in faults.NAMES
    mock.state.faults = frozenset(["hostile-kills"])
    assert main(["--url", mock.url, "-k", "hostile and (n-129 or n-0)"]) == NOT_GOOD
    out = capsys.readouterr().out
    assert "hostile: A hostile field" in out
    assert out.count("after n-129") == 1


def test_the_key_is_sent_and_never_shown(
    tmp_path: Path, mock: MockServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("s3cret-key\n")
    argv = ["--url", mock.url, "-k", "test_health", "--api-key-file", str(tmp_path / "key")]
    assert main([*argv, "--json", "--report", str(tmp_path / "r")]) == OK
    got = capsys.readouterr()
    assert "s3cret" not in got.out + got.err + (tmp_path / "r" / "report.json").read_text()


def test_a_log_without_the_engines_lines_lets_nothing_pass(mock: MockServer) -> None:
    from smoke.mock.target import SUBJECT, MockTarget
    from smoke.plugin import run
    from smoke.profiles import QUICK
    from smoke.record import Recorder
    from smoke.session import Session

    class Mute(MockTarget):
        def log(self) -> str:
            return "only the launcher speaks\n"

    s = Session(SUBJECT, QUICK, Mute(mock), Recorder(), say=lambda _: None)
    s.start()
    run(s, "fast_path or no_traceback")
    s.close()
    assert {c.outcome for c in s.rec.checks} == {"not run"}
    assert any("engine's own lines" in (c.reason or "") for c in s.rec.checks)
