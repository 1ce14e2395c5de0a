"""Rules, scrape config and dashboard, held to Prometheus's own tool and to the metrics that exist."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from launch.guard.metrics import StateCollector
from launch.guard.state import State

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
# Debian's package prometheus has it. .ci/run sets the variable: there a missing tool is a failure.
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool") and os.environ.get("SPARKSERVE_REQUIRE_PROMTOOL") != "1",
    reason="no promtool: apt-get install prometheus",
)
# Metrics of the engine, 0.5.23 (observability/metrics_collector.py), that rules and panels may name.
ENGINE = {"spec_accept_length", "num_running_reqs", "num_queue_reqs", "token_usage"} | {
    "generation_tokens_total", "prompt_tokens_total",
}  # fmt: skip


def promtool(*argv: str | Path) -> str:
    done = subprocess.run(
        ["promtool", *map(str, argv)], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text())


def expressions() -> dict[str, str]:
    """Every query of the dashboard, its variable filled in as Grafana would."""
    return {
        f"{p['title']} {t['refId']}": t["expr"].replace("$instance", ".*")
        for p in dashboard()["panels"]
        for t in p["targets"]
    }


@needs_promtool
def test_rules_and_config_are_valid():
    assert "8 rules found" in promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")


@pytest.mark.suite
@needs_promtool
def test_alerts_fire_when_they_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")


def test_every_alert_has_a_test_and_a_page():
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
    tested = (FOLDER / "rules_test.yml").read_text()
    page = (FOLDER.parents[1] / "docs" / "operations.md").read_text()
    for rule in rules:
        assert re.search(rf"alertname: {rule['alert']}\n\s+exp_alerts", tested), rule["alert"]
        assert rule["alert"] in page, rule["alert"]


@needs_promtool
def test_every_panels_query_parses(tmp_path):
    rules = [{"record": f"panel:q{i}", "expr": e} for i, e in enumerate(expressions().values())]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


@needs_promtool
def test_a_query_that_does_not_parse_is_noticed(tmp_path):
    path = tmp_path / "bad.yml"
    path.write_text(
        yaml.safe_dump({"groups": [{"name": "x", "rules": [{"record": "a:b", "expr": "rate(x[5m"}]}]})
    )
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, check=False)
    assert done.returncode != 0


def test_queries_name_metrics_that_exist():
    registry = CollectorRegistry()
    state = State(available=1, swap_used=1, low_water=1, available_at_ready=1)
    registry.register(StateCollector(state))
    ours = set(re.findall(r"^# TYPE (\S+)", generate_latest(registry).decode(), re.MULTILINE)) | {
        "sparkserve_engine_up"
    }
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
    for expr in [*expressions().values(), *(r["expr"] for r in rules)]:
        assert set(re.findall(r"sparkserve_\w+", expr)) <= ours, expr
        assert set(re.findall(r"sglang:(\w+)", expr)) <= ENGINE, expr


def test_dashboard_has_what_grafana_needs():
    d = dashboard()
    assert d["uid"] == "sparkserve"
    assert d["schemaVersion"] >= 36
    ids = [p["id"] for p in d["panels"]]
    assert len(ids) == len(set(ids)) >= 8
    taken = set()
    for p in d["panels"]:
        assert p["type"] in ("timeseries", "stat")
        assert p["targets"]
        assert len({t["refId"] for t in p["targets"]}) == len(p["targets"]), p["title"]
        assert p["datasource"]["uid"] == "${datasource}", p["title"]
        # Bytes are shown as bytes and shares as percent; units are Grafana's own words.
        exprs = " ".join(t["expr"] for t in p["targets"])
        want = {"bytes"} if "_bytes" in exprs else {"percentunit"} if "usage" in exprs else {"short", "none"}
        assert p["fieldConfig"]["defaults"]["unit"] in want, p["title"]
        assert all(t["datasource"]["uid"] == "${datasource}" for t in p["targets"])
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, p["title"]
        taken |= cells
    assert {v["name"] for v in d["templating"]["list"]} == {"datasource", "instance"}
