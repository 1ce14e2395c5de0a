"""One endpoint: the guard's figures, the engine's text, and a health code that follows the phase."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from launch.guard.metrics import Endpoint
from launch.guard.state import Phase, State

ENGINE = '# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{model_name="m"} 3.0\n'


class FakeEngine:
    text = ENGINE

    def metrics_text(self):
        if self.text is None:
            raise httpx.ConnectError("gone")
        return self.text


@pytest.fixture
def endpoint():
    e = Endpoint("127.0.0.1", 0, State(since=10.0), now=lambda: 25.0)
    yield e
    e.close()


def get(e, path):
    return httpx.get(f"http://127.0.0.1:{e.port}{path}", trust_env=False)


def scrape(e):
    reply = get(e, "/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(reply.text))
    names = [f.name for f in families]
    assert len(names) == len(set(names)), "a family twice is refused by Prometheus"
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def test_guard_and_engine_in_one_answer(endpoint):
    endpoint.engine = FakeEngine()
    s = endpoint.state
    s.available, s.low_water, s.floor, s.swap_used = 50, 40, 4, 0
    s.samples, s.restarts, s.hangs, s.forced = 9, 2, 1, ["x"]
    s.move(Phase.READY, now=20.0)
    seen = scrape(endpoint)
    assert seen["sparkserve_available_bytes",] == 50
    assert seen["sparkserve_low_water_bytes",] == 40
    assert seen["sparkserve_floor_bytes",] == 4
    assert seen["sparkserve_swap_used_bytes",] == 0
    assert seen["sparkserve_samples_total",] == 9
    assert seen["sparkserve_restarts_total",] == 2
    assert seen["sparkserve_hangs_total",] == 1
    assert seen["sparkserve_forced_reasons",] == 1
    assert seen["sparkserve_phase", "ready"] == 1
    assert seen["sparkserve_phase", "loading"] == 0
    assert seen["sparkserve_engine_up",] == 1
    assert seen["sglang:num_running_reqs", "m"] == 3
    assert ("sparkserve_available_at_ready_bytes",) not in seen, "unknown is absent, not zero"


@pytest.mark.parametrize("engine", ["none", "gone"])
def test_engine_that_is_gone_leaves_the_guards_part(endpoint, engine):
    if engine == "gone":
        endpoint.engine = FakeEngine()
        endpoint.engine.text = None
    seen = scrape(endpoint)
    assert seen["sparkserve_engine_up",] == 0
    assert seen["sparkserve_phase", "loading"] == 1


def test_trip_has_its_reason(endpoint):
    endpoint.state.trip = {"reason": "floor", "detail": 'a "quoted" \\ detail'}
    endpoint.state.move(Phase.TRIPPED)
    assert scrape(endpoint)["sparkserve_tripped", "floor"] == 1


@pytest.mark.parametrize("phase", Phase)
def test_health(endpoint, phase):
    endpoint.state.move(phase, "step", now=20.0)
    reply = get(endpoint, "/healthz")
    assert reply.status_code == (200 if phase is Phase.READY else 503)
    assert reply.text.startswith(f"{phase} for ")


def test_anything_else_is_404(endpoint):
    assert get(endpoint, "/").status_code == 404
    assert get(endpoint, "/metrics?x=1").status_code == 200
