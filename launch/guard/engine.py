"""What the guard asks the engine over HTTP: its metrics, and one token."""

from __future__ import annotations

from typing import Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from launch.guard.liveness import Work


class Engine(Protocol):
    """The questions; each raises httpx.HTTPError when there is no answer."""

    def work(self) -> Work: ...

    def one_token(self, timeout_s: float) -> bool: ...

    def metrics_text(self) -> str: ...


class HttpEngine:
    """SGLang's endpoints.

    The probe is a real request to `/generate`. `/health_generate` would not do: it gives up after a fixed 20 s and calls an
    engine that is busy with a long prefill unhealthy (entrypoints/http_server.py of 0.5.23).
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=url, headers=headers, trust_env=False)

    def metrics_text(self) -> str:
        return self._client.get("/metrics", timeout=5).raise_for_status().text

    def work(self) -> Work:
        return parse_work(self.metrics_text())

    def one_token(self, timeout_s: float) -> bool:
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        reply = self._client.post("/generate", json=body, timeout=timeout_s)
        return reply.status_code == httpx.codes.OK

    def close(self) -> None:
        self._client.close()


def parse_work(text: str) -> Work:
    """The engine's work from its Prometheus text; what is absent counts as nothing.

    `realtime_tokens_total` (prefill and decode) moves with every logged batch, `prompt_tokens_total` and
    `generation_tokens_total` when requests report (observability/metrics_collector.py of 0.5.23).
    """
    sums: dict[str, float] = {}
    prefill = 0.0
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            if sample.name.endswith(("_bucket", "_created", "_sum", "_count")):
                continue
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name == "sglang:realtime_tokens_total" and "prefill" in sample.labels.get("mode", ""):
                prefill += sample.value
    decode = sums.get("sglang:realtime_tokens_total", 0.0) - prefill
    return Work(
        running=int(sums.get("sglang:num_running_reqs", 0)),
        queued=int(sums.get("sglang:num_queue_reqs", 0)),
        prompt_tokens_total=int(sums.get("sglang:prompt_tokens_total", 0) + prefill),
        generated_tokens_total=int(sums.get("sglang:generation_tokens_total", 0) + decode),
    )
