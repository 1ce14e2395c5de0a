"""Apply the series to the members of a released wheel, checking every hash on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patches import diff, wheelfile
from patches.errors import ConfigError, DoesNotApply
from patches.series import ABSENT, FileHashes, Patch, Series
from patches.wheelfile import Member, Members


@dataclass
class Outcome:
    """Members after the series, and what happened to them."""

    members: Members
    files: dict[str, dict[str, FileHashes]] = field(default_factory=dict)  # patch -> path -> hashes
    notes: list[str] = field(default_factory=list)  # hunks found away from their line


def digest(data: bytes | None) -> str:
    return ABSENT if data is None else wheelfile.sha256(data)


def apply_one(members: Members, patch: Patch, data: bytes, outcome: Outcome) -> Members:
    """The members after one patch; records hashes and offsets in `outcome`. Raises DoesNotApply."""
    name = f"{patch.id} ({patch.patch})"
    files = diff.parse(data, name)
    for f in files:
        if not (f.path.startswith("sglang/") and f.path.endswith(".py")):
            raise ConfigError(f"{name}: {f.path}: a patch touches Python files below sglang/ only")

    def read(path: str) -> bytes | None:
        member = members.get(path)
        return None if member is None else member.data

    done = diff.apply(files, read, name)
    out = dict(members)
    hashes = {}
    for path, applied in done.items():
        hashes[path] = FileHashes(digest(read(path)), digest(applied.text))
        if applied.text is None:
            del out[path]
        else:
            old = members.get(path, Member(b""))
            out[path] = Member(applied.text, old.mode, old.compress)
        for index, lines in sorted(applied.offsets.items()):
            outcome.notes.append(f"{patch.id}: {path}: hunk {index} applies {lines:+d} lines away")
    outcome.files[patch.id] = hashes
    return out


def apply_series(series: Series, members: Members, only: Sequence[Patch] | None = None) -> Outcome:
    """Apply the carried patches (or those of `only`) in order, each file hash checked before and after.

    With `only`, a file that a left-out patch would have changed has another text than series.toml foresees;
    for such files the hashes are not compared, and the hunks still have to match exactly.
    """
    chosen = series.carried if only is None else tuple(p for p in series.carried if p in only)
    outcome = Outcome(members)
    off_chain: set[str] = set()
    for patch in series.carried:
        if patch not in chosen:
            off_chain |= set(patch.files)
            continue
        _expect(patch, outcome.members, off_chain, side="before")
        outcome.members = apply_one(outcome.members, patch, series.read(patch), outcome)
        touched = set(outcome.files[patch.id])
        if touched != set(patch.files):
            odd = ", ".join(sorted(touched ^ set(patch.files)))
            raise ConfigError(
                f"{patch.id}: {patch.patch} and series.toml disagree about {odd}; run `python -m patches refresh`"
            )
        _expect(patch, outcome.members, off_chain, side="after")
    return outcome


def _expect(patch: Patch, members: Members, off_chain: set[str], side: str) -> None:
    for path, hashes in patch.files.items():
        if path in off_chain:
            continue
        want = hashes.before if side == "before" else hashes.after
        member = members.get(path)
        got = digest(None if member is None else member.data)
        if got == want:
            continue
        if side == "before" and got == ABSENT:
            raise DoesNotApply(path, "", "no such file in the wheel", f"{patch.id} ({patch.patch})")
        raise ConfigError(
            f"{patch.id}: {path}: sha256 {side} the patch is {got}, series.toml says {want}; "
            "if the change is meant, run `python -m patches refresh`"
        )


def check_base(series: Series, wheel: Path) -> None:
    """The wheel is one of the pinned releases, byte for byte. Raises ConfigError saying which it is not."""
    if not wheel.is_file():
        raise ConfigError(f"{wheel}: no such wheel")
    got = wheelfile.sha256_file(wheel)
    if got in series.wheels.values():
        return
    want = series.wheels.get(wheel.name)
    if want is None:
        known = ", ".join(name.removeprefix(f"sglang-{series.version}-") for name in series.wheels)
        raise ConfigError(
            f"{wheel.name}: not a pinned wheel of sglang {series.version} (sha256 {got}; pinned: {known})"
        )
    raise ConfigError(f"{wheel.name}: sha256 mismatch: expected {want}, got {got}; fetch it again")


def label(series: Series, only: Sequence[Patch] | None) -> str:
    """Version of the result. A part of the series never calls itself the whole."""
    if only is None or all(p in only for p in series.carried):
        return series.spark_version
    ids = ".".join(p.id.lower() for p in series.carried if p in only) or "none"
    return f"{series.spark_version}.only.{ids}"


def build(series: Series, wheel: Path, only: Sequence[Patch] | None = None) -> tuple[str, Outcome]:
    """(version, outcome) of the patched wheel's members, RECORD and version included."""
    check_base(series, wheel)
    outcome = apply_series(series, wheelfile.read(wheel), only)
    version = label(series, only)
    manifest: dict[str, object] = {
        "base": {"version": series.version, "wheel": wheel.name, "sha256": wheelfile.sha256_file(wheel)},
        "version": version,
        "patches": [
            {
                "id": p.id,
                "title": p.title,
                "patch": p.patch,
                "sha256": wheelfile.sha256(series.read(p)),
                "files": {
                    path: {"before": h.before, "after": h.after}
                    for path, h in sorted(outcome.files[p.id].items())
                },
            }
            for p in series.carried
            if p.id in outcome.files
        ],
    }
    outcome.members = wheelfile.set_version(outcome.members, series.version, version, manifest)
    return version, outcome


def build_wheel(
    series: Series, wheel: Path, out: Path, only: Sequence[Patch] | None = None
) -> tuple[Path, Outcome]:
    """Write the patched wheel into directory `out`; returns its path."""
    version, outcome = build(series, wheel, only)
    name, _old, tags = wheelfile.name_parts(wheel)
    target = out / f"{name}-{version}-{tags}.whl"
    wheelfile.write(outcome.members, target)
    return target, outcome
