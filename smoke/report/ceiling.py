"""What memory bandwidth would allow for each workload of a report, beside what was measured."""

from __future__ import annotations

from launch.bandwidth import bandwidth
from launch.commandline import computed
from launch.errors import SparkError
from launch.gemms import gemms_of
from launch.planfacts import plan_facts
from launch.registry import Registry
from launch.resolve import resolve
from launch.roofline import step
from smoke.report.model import Load


def with_ceilings(loads: list[Load], preset: str, machine: str) -> tuple[list[Load], str | None]:
    """(workloads with `ceiling` where it can be said, the bandwidth it is for or None).

    Tokens/s of one stream at the measured acceptance, at half of the output. Without a draft the acceptance is 1; a workload
    with a draft whose acceptance was not measured has no ceiling. Nothing is said where bandwidth or layers are unknown.
    """
    if not loads:
        return loads, None
    try:
        loaded = Registry().load(preset)
        r = computed(resolve(loaded, machine))
        peak, source = bandwidth(r)
        gemms, _ = gemms_of(r)
        facts = plan_facts(r)
        out = []
        for w in loads:
            accept = w.accept_length if loaded.draft is not None else 1.0
            if not accept:
                out.append(w)
                continue
            s = step(r, facts, gemms, context=w.prompt + w.output // 2, requests=w.concurrency)
            one = s.ceiling(peak, accept) / w.concurrency
            out.append(w.model_copy(update={"ceiling": round(one, 3)}))
    except SparkError:
        return loads, None
    return out, f"{peak / 1e9:.0f} GB/s ({source})"
