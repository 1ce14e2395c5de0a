"""A real Prometheus scrapes the real guard with a mock engine behind it, and every panel's query gives data."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from smoke.targets.process import free_port
from tests.guard.mock_server import MockServer
from tests.monitoring.test_monitoring import ENGINE, FOLDER, expressions

pytestmark = [
    pytest.mark.suite,
    pytest.mark.skipif(
        not shutil.which("prometheus") and os.environ.get("SPARKSERVE_REQUIRE_PROMTOOL") != "1",
        reason="no prometheus: apt-get install prometheus",
    ),
]
ROOT = Path(__file__).resolve().parents[2]


class Engine(MockServer):
    def metrics(self) -> str:
        return "".join(
            f'# TYPE sglang:{name} gauge\nsglang:{name}{{model_name="m"}} {self.answers + 1}\n'
            for name in ENGINE
        )


def until(look, seconds=90.0):
    """What `look` returns once it is true. The end is for a thing that never comes, not a speed that is asked for."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)
    return found


@pytest.fixture
def live(tmp_path):
    """(query, serve): ask Prometheus; start another server under the guard."""
    started, engine, port, asked = [], Engine(), free_port(), free_port()

    def start(argv, **kw):
        with (tmp_path / f"{len(started)}.log").open("wb") as log:
            started.append(subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, **kw))
        return started[-1]

    def serve():
        server = start([sys.executable, "-c", "import time; time.sleep(600)"])
        temporary = tmp_path / "pid.new"
        temporary.write_text(str(server.pid))
        temporary.replace(tmp_path / "pid")
        return server

    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["rule_files"] = [str(FOLDER / "rules.yml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "launch.guard", "--url", engine.url, "--pid-file", str(tmp_path / "pid")]
    argv += ["--state", str(tmp_path / "state.json"), "--metrics", f"127.0.0.1:{port}"]

    def query(expr):
        try:
            url = f"http://127.0.0.1:{asked}/api/v1/query"
            reply = httpx.get(url, params={"query": expr}, trust_env=False)
        except httpx.TransportError:  # it is starting
            return []
        if reply.status_code == 503:  # it listens, and still reads its write-ahead log
            return []
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]["result"]

    try:
        serve.first = serve()
        start(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        start([
            "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{asked}",
        ])  # fmt: skip
        yield query, serve
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
        engine.close()


def value(found):
    return float(found[0]["value"][1])


def test_every_panel_gives_data_and_a_restart_is_counted(live):
    query, serve = live
    assert until(lambda: query('sparkserve_phase{phase="ready"} == 1'))
    for panel, expr in expressions().items():
        found = until(lambda expr=expr: query(expr))
        assert json.dumps(found), panel
    assert value(query("sparkserve_engine_up")) == 1
    assert value(query("sparkserve_available_bytes")) > value(query("sparkserve_floor_bytes")) > 0
    assert not query("no_such_metric")
    serve.first.kill()
    serve.first.wait()
    until(lambda: query("sparkserve_engine_up == 0"))
    serve()
    restarts = next(e for name, e in expressions().items() if name.startswith("Restarts"))
    until(lambda: value(query(restarts)) > 0)
    assert until(lambda: query('sparkserve_phase{phase="ready"} == 1'))
