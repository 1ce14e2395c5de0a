"""One Prometheus endpoint for guard and engine, and /healthz: 200 only while the server is ready.

/metrics has the guard's own figures, then the engine's text as it is. It stays up while the server restarts, hangs or is
being ended, which is when it matters; the engine's part is missing then and `sparkserve_engine_up` is 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from launch.guard.engine import Engine
from launch.guard.state import Phase, State


class StateCollector(Collector):
    """The guard's state as metrics; what is not known yet is absent, not zero."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        s = self._state
        sizes = {
            "available_bytes": (
                s.available,
                "Memory available to the machine or the cgroup, whichever is less.",
            ),
            "low_water_bytes": (s.low_water, "Least available memory seen since the container started."),
            "available_at_ready_bytes": (
                s.available_at_ready,
                "Available memory when the server first answered.",
            ),
            "floor_bytes": (
                s.floor,
                "Below this for 2 s, or below half of it at once, the guard stops the server.",
            ),
            "swap_used_bytes": (s.swap_used, "Swap in use."),
        }
        for name, (value, text) in sizes.items():
            if value is not None:
                yield GaugeMetricFamily(f"sparkserve_{name}", text, value=value)
        phase = GaugeMetricFamily("sparkserve_phase", "1 for the phase the server is in.", labels=["phase"])
        for p in Phase:
            phase.add_metric([str(p)], float(p is s.phase))
        yield phase
        yield GaugeMetricFamily("sparkserve_phase_since_seconds", "When that phase began.", value=s.since)
        tripped = GaugeMetricFamily("sparkserve_tripped", "1 with the reason of a trip.", labels=["reason"])
        if s.trip:
            tripped.add_metric([s.trip.get("reason", "")], 1.0)
        yield tripped
        yield GaugeMetricFamily(
            "sparkserve_forced_reasons",
            "Reasons against this start that --force overrode.",
            value=len(s.forced),
        )
        yield GaugeMetricFamily(
            "sparkserve_kernel_log_readable", "Whether driver errors can be seen.", value=float(s.kernel_log)
        )
        counts = {
            "samples": (s.samples, "Looks at memory for this server."),
            "restarts": (s.restarts, "Servers started after the first."),
            "hangs": (s.hangs, "Servers ended because no token came."),
        }
        for name, (value, text) in counts.items():
            yield CounterMetricFamily(f"sparkserve_{name}", text, value=value)


class Endpoint:
    """Serve `state` on host:port in a thread. `engine` is the one being watched, None between two servers."""

    def __init__(self, host: str, port: int, state: State, *, now: Callable[[], float] = time.time) -> None:
        self.state = state
        self.engine: Engine | None = None
        self._now = now
        self._registry = CollectorRegistry()
        self._registry.register(StateCollector(state))
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a client that connects and says nothing must not hold a thread for ever

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                status, kind, body = endpoint.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer((host, port), Handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, name="metrics", daemon=True).start()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """(status, content type, body) for a GET."""
        if path == "/healthz":
            status, line = self.state.health(self._now())
            return status, "text/plain; charset=utf-8", f"{line}\n".encode()
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self.metrics()
        return 404, "text/plain; charset=utf-8", b"/metrics or /healthz\n"

    def metrics(self) -> bytes:
        engine = self.engine
        text = ""
        if engine is not None:
            try:
                text = engine.metrics_text()
            except (httpx.HTTPError, RuntimeError):  # closed in the middle of a question
                text = ""
        up = (
            "# HELP sparkserve_engine_up Whether the engine gave its metrics.\n"
            f"# TYPE sparkserve_engine_up gauge\nsparkserve_engine_up {int(bool(text))}\n"
        )
        return generate_latest(self._registry) + up.encode() + text.encode()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
