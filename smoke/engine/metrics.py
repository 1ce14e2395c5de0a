"""Read /metrics with prometheus_client's own parser."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Metrics:
    """Series by name (with the `sglang:` prefix off), one value per label set."""

    series: dict[str, list[float]] = field(default_factory=dict)

    @property
    def running(self) -> float | None:
        """Requests being decoded, over all ranks. None if the engine does not say."""
        return _sum(self.series.get("num_running_reqs"))

    @property
    def queued(self) -> float | None:
        return _sum(self.series.get("num_queue_reqs"))

    @property
    def verify_calls(self) -> float | None:
        return _sum(self.series.get("spec_verify_calls_total"))


def parse_metrics(text: str) -> Metrics:
    """`text` in the Prometheus exposition format; other exporters' series are left out."""
    out: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            if s.name.startswith(("sglang:", "sglang_")):
                out.setdefault(s.name[7:], []).append(float(s.value))
    return Metrics(out)


def _sum(values: list[float] | None) -> float | None:
    return None if not values else sum(values)
