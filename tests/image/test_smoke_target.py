"""The smoke suite's docker target on a real container: an offline boot has no network and is asked all the same."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from launch import container
from smoke.targets import Boot
from smoke.targets.docker import DockerTarget, Run
from smoke.wait import start_phases, wait_for

from .conftest import MOCK, PRESET

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]
DEADLINES = {"port": 30.0, "ready": 120.0, "tokens": 120.0}


@pytest.fixture
def offline(client: Any, image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerTarget]:
    volume = f"spark-test-cache-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(container, "CACHE_VOLUME", volume)
    inside = (("MOCK", "serve"), ("PYTHONPATH", "/mock:/opt/sparkserve"))
    run = Run(image, gpu=False, mounts=(f"{MOCK}:/mock",), environment=inside)
    target = DockerTarget(PRESET, run, client=client)
    try:
        target.start(Boot(offline=True))
        wait_for(target, start_phases({}, DEADLINES, owned=True))
        yield target
    finally:
        target.stop()
        client.volumes.get(volume).remove(force=True)


def test_an_offline_boot_has_no_network_and_answers(offline: DockerTarget) -> None:
    assert offline.network() == "lo only; Network is unreachable"
    assert list(offline.container.attrs["NetworkSettings"]["Networks"]) == ["none"]

    def ask(i: int) -> tuple[int, str]:
        body = {"prompt": f"{i} " + "x" * 300_000, "mock_seconds": 0}  # more than one frame each way
        r = httpx.post(f"{offline.url}/v1/completions", json=body, timeout=60)
        return r.status_code, r.json()["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert {code for code, _ in answers} == {200}
    assert all(text for _, text in answers)
    # Many requests over one connection, as the suite's client makes them.
    with httpx.Client(base_url=offline.url, timeout=30) as one:
        assert [one.get("/health").status_code for _ in range(20)] == [200] * 20


def test_when_it_stops_the_port_is_free_again(offline: DockerTarget) -> None:
    offline.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(offline.url, timeout=5)
