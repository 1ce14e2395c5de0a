"""Would the series apply to another release? What of it has upstream taken in?"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patches import diff, wheelfile
from patches.apply import Outcome, apply_one
from patches.errors import DoesNotApply
from patches.series import Patch, Series
from patches.wheelfile import Members

APPLIES, ABSORBED, FAILS, LACKS, UPSTREAM = "applies", "absorbed", "fails", "lacks", "upstream"


@dataclass(frozen=True)
class Trial:
    """One patch on another release. `details` names offsets, or file, hunk and reason of a failure."""

    id: str
    title: str
    result: str
    details: tuple[str, ...] = ()


@dataclass
class Report:
    """The series on one release, in order; each patch sees the ones before it that applied."""

    version: str
    wheel: str
    trials: list[Trial] = field(default_factory=list)
    members: Members = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return all(t.result not in {FAILS, LACKS} for t in self.trials)

    def to_json(self) -> dict[str, object]:
        return {
            "version": self.version,
            "wheel": self.wheel,
            "good": self.good,
            "patches": [asdict(t) for t in self.trials],
        }


def try_series(series: Series, wheel: Path) -> Report:
    """Try each carried patch on the wheel of another release, in order."""
    _name, version, _tags = wheelfile.name_parts(wheel)
    report = Report(version, wheel.name, members=wheelfile.read(wheel))
    failed_in: dict[str, str] = {}  # file -> first patch that failed in it
    for patch in series.patches:
        if not patch.carried:
            report.trials.append(_not_carried(patch, version))
            continue
        data = series.read(patch)
        outcome = Outcome(report.members)
        try:
            members = apply_one(report.members, patch, data, outcome)
        except DoesNotApply:
            trial = _other(report.members, patch.id, patch.title, data, failed_in)
            if trial.result == FAILS:
                for f in diff.parse(data, patch.id):
                    failed_in.setdefault(f.path, patch.id)
            report.trials.append(trial)
            continue
        notes = tuple(n.removeprefix(f"{patch.id}: ") for n in outcome.notes)
        report.trials.append(Trial(patch.id, patch.title, APPLIES, notes))
        report.members = members
    return report


def _not_carried(patch: Patch, version: str) -> Trial:
    """An entry without a patch: is the release one that is known to have it?"""
    if patch.since and _order(version) < _order(patch.since):
        return Trial(patch.id, patch.title, LACKS, (f"upstream has it since {patch.since} only",))
    return Trial(patch.id, patch.title, patch.state)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def _other(members: Members, ident: str, title: str, data: bytes, failed_in: dict[str, str]) -> Trial:
    """A patch that does not apply: already in, or failing; hunk by hunk."""
    files = diff.parse(data, ident)

    def read(path: str) -> bytes | None:
        found = members.get(path)
        return None if found is None else found.data

    try:
        diff.apply(diff.reverse(files), read, ident)
        return Trial(ident, title, ABSORBED, ("every hunk of it is in this release",))
    except DoesNotApply:
        pass
    details = []
    for f in files:
        source = read(f.path)
        if source is None and not f.creates:
            details.append(f"{f.path}: no such file")
            continue
        for hunk, state in diff.hunk_states(f, source):
            if state != APPLIES:
                details.append(f"{f.path} {hunk.label}: {state}")
        if f.path in failed_in:
            details.append(f"{f.path}: {failed_in[f.path]} failed here before, which may be the cause")
    return Trial(ident, title, FAILS, tuple(details))
