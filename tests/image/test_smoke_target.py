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
from smoke.wait import Alive, All, HttpOk, Phase, wait_for
from tests.engine.server import fixture_root

from .conftest import MOCK, PRESET

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]


@pytest.fixture
def offline(client: Any, image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerTarget]:
    volume = f"spark-test-cache-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(container, "CACHE_VOLUME", volume)
    inside = {"MOCK": "serve", "PYTHONPATH": "/mock:/opt/sparkserve", "SPARKSERVE_FIXTURES": "/fixtures"}
    mounts = (f"{MOCK}:/mock", f"{fixture_root()}:/fixtures")
    run = Run(image, gpu=False, mounts=mounts, environment=tuple(inside.items()))
    target = DockerTarget(PRESET, run, client=client)
    try:
        target.start(Boot(offline=True))
        wait_for(target, [Phase("ready", All([Alive(), HttpOk()]), 120.0)])
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
    offline.stop()
    with pytest.raises(httpx.ConnectError):  # the port is free again
        httpx.get(offline.url, timeout=5)
