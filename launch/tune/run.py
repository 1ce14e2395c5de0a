"""One run of `sparkserve tune`: load what is kept, measure the rest, judge, save after every measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.gemms import Gemm
from launch.resolve import Resolved
from launch.tune import judge, profile
from launch.tune.measure import Limits, Outcome, measure
from launch.tune.work import Item

COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class Done:
    """What came of it."""

    profile: profile.Profile
    path: Path
    outcome: Outcome
    verdicts: tuple[judge.Verdict, ...]


def tune(
    resolved: Resolved,
    key: profile.Key,
    gemms: Sequence[Gemm],
    items: Sequence[Item],
    *,
    minutes: float,
    patience: float,
    again: bool,
    command: Sequence[str],
    cwd: Path,
    log: Path,
    say: Callable[[str], None],
    extra: Mapping[str, Any] | None = None,
) -> Done:
    """Measure what has no record yet, for `minutes`; the profile is on disk after each measurement, so a kill loses one.

    Records are shared by presets of the same shapes. Raises ConfigError for a damaged profile, CannotWrite.
    """
    path = profile.path_of(key)
    found = None if again else profile.load(path)
    kept = found or profile.Profile(schema=1, key=key, copy_bytes=COPY_BYTES, bandwidth=None)
    if again and (old := profile.load(path)) is not None:
        kept.presets.update(old.presets)

    def keep(name: str, record: dict[str, Any]) -> None:
        kept.records[name] = record
        profile.save(kept)

    # What failed is tried again in a later run: a driver or a compiler may have been mended.
    good = {k: r for k, r in kept.records.items() if r.get("us")}
    outcome = measure(
        items, good, command, Limits(minutes * 60, patience), keep, cwd=cwd, log=log, say=say,
        extra={"copy_bytes": kept.copy_bytes, **(extra or {})},
    )  # fmt: skip
    kept.bandwidth = judge.bandwidth(kept.records, kept.copy_bytes)
    verdicts = judge.judge(items, kept.records, gemms)
    engine, env = judge.settings(verdicts)
    kept.presets[resolved.preset.name] = profile.Tuned(
        digest=resolved.preset.digest,
        finished=not outcome.unfinished,
        choices=[
            profile.Chosen(
                role=v.role, option=v.chosen.option, autotune=v.chosen.autotune, today=v.today.name,
                speedup=round(v.speedup, 4), why=v.why,
            )
            for v in verdicts
        ],
        engine=engine,
        env=env,
    )  # fmt: skip
    return Done(kept, profile.save(kept), outcome, verdicts)
