"""Does a wheel, an installed environment or a source tree hold the series? Answered by file hashes.

Several patches may change one file, so a file has a chain of hashes: the released text, then the text after
each patch that touches it. The last one means every patch is in, the first one none, one between says which.
A text outside the chain is peeled: patches are taken off in reverse order wherever they come off exactly. If
the released text remains, the file is a clean subset of the series; otherwise something else has changed it
and each patch in it is `drifted`, whatever its own hunks look like.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from patches import diff, wheelfile
from patches.apply import digest
from patches.diff import FilePatch, Reader
from patches.errors import ConfigError, DoesNotApply
from patches.series import Patch, Series

APPLIED, MISSING, UPSTREAM, DRIFTED, DROPPED = "applied", "missing", "upstream", "drifted", "dropped"


@dataclass(frozen=True)
class PatchState:
    """One patch in the thing verified; `files` says it per file."""

    id: str
    title: str
    state: str
    files: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The whole answer. `whole` is what the exit code says."""

    target: str
    version: str
    expected_version: str
    patches: tuple[PatchState, ...]
    bad_records: tuple[str, ...]  # engine files that are not as their RECORD says

    @property
    def whole(self) -> bool:
        return (
            self.version == self.expected_version
            and not self.bad_records
            and all(p.state in {APPLIED, UPSTREAM, DROPPED} for p in self.patches)
        )

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "whole": self.whole}


@dataclass(frozen=True)
class Target:
    """Something with an engine in it."""

    name: str
    version: str
    read: Reader
    record: dict[str, str]


def verify(series: Series, target: Target) -> Report:
    """Compare `target` with the series."""
    states = file_states(series, target.read)
    reports = []
    for patch in series.patches:
        if not patch.carried:
            note = f"since {patch.since}" if patch.state == UPSTREAM else ""
            reports.append(PatchState(patch.id, patch.title, patch.state, note=note))
            continue
        files = {path: states[path][patch.id][0] for path in patch.files}
        notes = [f"{path}: {states[path][patch.id][1]}" for path in files if states[path][patch.id][1]]
        kinds = set(files.values())
        if len(kinds) > 1 and DRIFTED not in kinds:
            notes.append("only in some of its files")
        state = kinds.pop() if len(kinds) == 1 else DRIFTED
        reports.append(PatchState(patch.id, patch.title, state, files, "; ".join(notes)))
    bad = tuple(wheelfile.bad_records(target.record, target.read))
    return Report(target.name, target.version, series.spark_version, tuple(reports), bad)


def file_states(series: Series, read: Reader) -> dict[str, dict[str, tuple[str, str]]]:
    """path -> patch id -> (state, note) for every file of a carried patch."""
    chains: dict[str, list[Patch]] = {}
    for patch in series.carried:
        for path in patch.files:
            chains.setdefault(path, []).append(patch)
    return {path: _one_file(series, path, chain, read(path)) for path, chain in chains.items()}


def _one_file(
    series: Series, path: str, chain: list[Patch], text: bytes | None
) -> dict[str, tuple[str, str]]:
    got = digest(text)
    # From the end: a patch that another one undoes would otherwise hide the later state.
    hashes = [chain[0].files[path].before, *(p.files[path].after for p in chain)]
    for n in range(len(hashes) - 1, -1, -1):
        if got == hashes[n]:
            return {p.id: ((APPLIED if i < n else MISSING), "") for i, p in enumerate(chain)}
    if text is None:
        return {p.id: (MISSING, "the file does not exist") for p in chain}
    return _peel(series, path, chain, text, hashes[0])


def _peel(
    series: Series, path: str, chain: list[Patch], text: bytes | None, base: str
) -> dict[str, tuple[str, str]]:
    found: dict[str, bool] = {}
    for patch in reversed(chain):
        part = _file_patch(series, patch, path)
        try:
            text = diff.apply_file(part.reversed(), text).text
            found[patch.id] = True
        except DoesNotApply:
            found[patch.id] = False
    if digest(text) == base:
        return {p.id: ((APPLIED if found[p.id] else MISSING), "") for p in chain}
    out = {}
    for patch in chain:
        if found[patch.id]:
            note = "its change is in, but the file has other changes too"
        else:
            note = "its change is not in, and the file has other changes"
            try:
                diff.apply_file(_file_patch(series, patch, path), text)
            except DoesNotApply as e:
                note = f"its change is neither in nor fits ({e.hunk or e.reason})"
        out[patch.id] = (DRIFTED, note)
    return out


def _file_patch(series: Series, patch: Patch, path: str) -> FilePatch:
    for part in diff.parse(series.read(patch), f"{patch.id} ({patch.patch})"):
        if part.path == path:
            return part
    raise ConfigError(f"{patch.id}: {path} is in series.toml but not in {patch.patch}")


def open_target(spec: str) -> Target:
    """A wheel file, a site-packages (or tree) directory, an environment directory or its python.

    Raises ConfigError when there is no engine in it.
    """
    path = Path(spec)
    if path.suffix == ".whl":
        return _open_wheel(path)
    site = path
    if path.is_file():  # a python executable: its environment is two up, links not followed
        site = path.parent.parent
    if not path.exists():
        raise ConfigError(f"{spec}: no such wheel, directory or python")
    if not (site / "sglang").is_dir():
        found = sorted(site.glob("lib/python3*/site-packages")) + sorted(site.glob("Lib/site-packages"))
        with_engine = [s for s in found if (s / "sglang").is_dir()]
        if len(with_engine) != 1:
            raise ConfigError(f"{spec}: {'no' if not with_engine else 'more than one'} sglang found in it")
        site = with_engine[0]
    infos = sorted(site.glob("sglang-*.dist-info"))
    if len(infos) != 1:
        raise ConfigError(
            f"{site}: {len(infos)} sglang-*.dist-info directories, expected one; reinstall the engine"
        )

    @cache
    def read(member: str) -> bytes | None:
        file = site / member
        return file.read_bytes() if file.is_file() else None

    return _target(str(site), read, infos[0].name)


def _open_wheel(path: Path) -> Target:
    members = wheelfile.read(path)

    def read(member: str) -> bytes | None:
        found = members.get(member)
        return None if found is None else found.data

    return _target(path.name, read, wheelfile.dist_info(members, path.name))


def _target(name: str, read: Reader, info: str) -> Target:
    metadata, record = read(f"{info}/METADATA"), read(f"{info}/RECORD")
    if metadata is None or record is None:
        raise ConfigError(f"{name}: {info} has no METADATA or no RECORD; reinstall the engine")
    version = wheelfile.metadata_version(metadata.decode("utf-8", "replace"))
    entries = wheelfile.records(record.decode("utf-8", "replace"))
    own = {p: h for p, h in entries.items() if p.startswith("sglang/") and not p.endswith(".pyc")}
    return Target(name, version, read, own)


def default_target() -> str:
    """The running interpreter's own environment."""
    return sys.prefix
