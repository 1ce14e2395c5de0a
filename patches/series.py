"""`series.toml`: what we carry on which released wheel, read and validated with the standard library."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patches.errors import ConfigError

HERE = Path(__file__).resolve().parent
ABSENT = "absent"  # in place of a sha256: the file does not exist on that side

_ID = re.compile(r"^[A-Z]{1,3}\d{2}$")
_SHA = re.compile(r"^[0-9a-f]{64}$")
_PATCH_FILE = re.compile(r"^\d{4}-[a-z0-9][a-z0-9-]*\.patch$")
_CONTRACT = re.compile(r"^contracts/test_[a-z0-9_]+\.py$")
_VERSION = re.compile(r"^\d+\.\d+\.\d+(?:\.post\d+)?$")
_STATES = ("carried", "upstream", "dropped")


@dataclass(frozen=True)
class FileHashes:
    """sha256 of one file before and after one patch, or ABSENT."""

    before: str
    after: str


@dataclass(frozen=True)
class Patch:
    """One `[[patch]]` entry. `since` is the release from which upstream has it (state "upstream")."""

    id: str
    title: str
    why: str
    state: str
    drop_when: str
    contract: str | None = None
    since: str | None = None
    patch: str | None = None
    upstream: tuple[str, ...] = ()
    files: dict[str, FileHashes] = field(default_factory=dict)

    @property
    def carried(self) -> bool:
        return self.state == "carried"


@dataclass(frozen=True)
class Series:
    """The whole series, in order of application."""

    version: str  # of the released wheel
    release: int  # N of +spark.N
    wheels: dict[str, str]  # wheel file name -> sha256
    patches: tuple[Patch, ...]
    root: Path

    @property
    def carried(self) -> tuple[Patch, ...]:
        return tuple(p for p in self.patches if p.carried)

    @property
    def spark_version(self) -> str:
        return f"{self.version}+spark.{self.release}"

    def by_id(self, wanted: str) -> Patch:
        for p in self.patches:
            if p.id.lower() == wanted.lower():
                return p
        known = ", ".join(p.id for p in self.patches) or "none"
        raise ConfigError(f"no patch {wanted} in series.toml (known: {known})")

    def read(self, patch: Patch) -> bytes:
        """The bytes of a carried patch's file."""
        assert patch.patch is not None
        path = self.root / patch.patch
        try:
            return path.read_bytes()
        except OSError as e:
            raise ConfigError(f"{patch.id}: cannot read {path.name}: {e.strerror or e}") from None


def load(root: Path = HERE, *, hashes: bool = True) -> Series:
    """Read `root`/series.toml. `hashes=False` accepts entries whose file hashes are not written yet."""
    path = root / "series.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not valid TOML: {e}") from None
    return parse(data, root, hashes=hashes)


def parse(data: dict[str, Any], root: Path, *, hashes: bool = True) -> Series:
    """Validate the tables of a series.toml; every complaint is one line that names the key."""
    _known(data, {"base", "series", "patch"}, "series.toml")
    base = _table(data, "base", "series.toml")
    _known(base, {"version", "wheels"}, "[base]")
    version = _string(base, "version", "[base]")
    if not _VERSION.match(version):
        raise ConfigError(f"series.toml: [base] version: {version!r} is not a release number")
    wheels = _table(base, "wheels", "[base]")
    for name, sha in wheels.items():
        if not (isinstance(sha, str) and _SHA.match(sha)):
            raise ConfigError(f"series.toml: [base.wheels] {name}: not a sha256 (64 hex digits)")
        if not (name.startswith(f"sglang-{version}-") and name.endswith(".whl")):
            raise ConfigError(f"series.toml: [base.wheels] {name}: not a wheel of sglang {version}")
    series = _table(data, "series", "series.toml")
    _known(series, {"release"}, "[series]")
    release = series.get("release")
    if type(release) is not int or release < 1:
        raise ConfigError("series.toml: [series] release: needs a whole number from 1")
    entries = data.get("patch", [])
    if not isinstance(entries, list):
        raise ConfigError("series.toml: patch: must be [[patch]] tables")
    patches = tuple(parse_entry(e, f"[[patch]] {i}", hashes=hashes) for i, e in enumerate(entries, 1))
    for what in ("id", "patch"):
        seen: set[str] = set()
        for p in patches:
            value = getattr(p, what)
            if value is not None and value in seen:
                raise ConfigError(f"series.toml: {what} {value!r} is used twice")
            seen.add(value)
    names = [p.patch for p in patches if p.patch]
    if names != sorted(names):
        raise ConfigError("series.toml: patch files are not in the order of their numbers")
    return Series(version, release, dict(wheels), patches, root)


def parse_entry(raw: Any, where: str, *, hashes: bool = True) -> Patch:
    """One [[patch]] table. Also used for fragments that have no patch file yet (`hashes=False`)."""
    if not isinstance(raw, dict):
        raise ConfigError(f"series.toml: {where}: not a table")
    ident = raw.get("id")
    if not (isinstance(ident, str) and _ID.match(ident)):
        raise ConfigError(f"series.toml: {where}: id: {ident!r} is not like P06")
    where = ident
    keys = {"id", "title", "why", "upstream", "files", "state", "since", "contract", "drop_when", "patch"}
    _known(raw, keys, where)
    state, since = _state(_string(raw, "state", where), raw.get("since"), where)
    refs = raw.get("upstream", [])
    if not (isinstance(refs, list) and all(isinstance(r, str) and r for r in refs)):
        raise ConfigError(f"series.toml: {where}: upstream: needs a list of references such as sglang#30119")
    contract = raw.get("contract")
    if contract is not None and not (isinstance(contract, str) and _CONTRACT.match(contract)):
        raise ConfigError(f"series.toml: {where}: contract: {contract!r} is not contracts/test_NAME.py")
    patch = raw.get("patch")
    if patch is not None and not (isinstance(patch, str) and _PATCH_FILE.match(patch)):
        raise ConfigError(f"series.toml: {where}: patch: {patch!r} is not like 0001-name.patch")
    files = _files(raw.get("files", {}), where)
    if state == "carried" and contract is None:
        raise ConfigError(f"series.toml: {where}: a carried patch needs a contract")
    if hashes and state == "carried":
        if patch is None:
            raise ConfigError(f"series.toml: {where}: a carried patch needs a patch file")
        if not files:
            raise ConfigError(f"series.toml: {where}: no file hashes; run `python -m patches refresh`")
    if state != "carried" and patch is not None:
        raise ConfigError(f"series.toml: {where}: state {state!r} has no patch file; remove `patch`")
    return Patch(
        id=ident,
        title=_string(raw, "title", where),
        why=" ".join(_string(raw, "why", where).split()),
        state=state,
        drop_when=" ".join(_string(raw, "drop_when", where).split()),
        contract=contract,
        since=since,
        patch=patch,
        upstream=tuple(refs),
        files=files,
    )


def _state(state: str, since: Any, where: str) -> tuple[str, str | None]:
    """`upstream-since-0.5.19` is a short form of state "upstream", since "0.5.19"."""
    if state.startswith("upstream-since-"):
        if since is not None:
            raise ConfigError(f"series.toml: {where}: since: said twice")
        state, since = "upstream", state.removeprefix("upstream-since-")
    if state not in _STATES:
        raise ConfigError(
            f"series.toml: {where}: state: {state!r} is none of carried, upstream, upstream-since-X, dropped"
        )
    if since is not None and not isinstance(since, str):
        raise ConfigError(f"series.toml: {where}: since: needs a release such as 0.5.19")
    if state == "upstream" and not since:
        raise ConfigError(f"series.toml: {where}: since: state upstream needs the release that has it")
    if state != "upstream" and since:
        raise ConfigError(f"series.toml: {where}: since: only for state upstream")
    return state, since


def _files(raw: Any, where: str) -> dict[str, FileHashes]:
    if not isinstance(raw, dict):
        raise ConfigError(f"series.toml: {where}: files: needs a table of path -> before, after")
    files = {}
    for path, pair in raw.items():
        if not (isinstance(pair, dict) and set(pair) == {"before", "after"}):
            raise ConfigError(f"series.toml: {where}: files: {path}: needs before and after")
        for side, sha in pair.items():
            if not (isinstance(sha, str) and (sha == ABSENT or _SHA.match(sha))):
                raise ConfigError(f"series.toml: {where}: files: {path}: {side}: not a sha256 nor {ABSENT!r}")
        files[path] = FileHashes(pair["before"], pair["after"])
    return files


def _table(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ConfigError(f"series.toml: {where}: table {key} is missing")
    return value


def _string(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"series.toml: {where}: {key}: needs a text")
    return value


def _known(data: dict[str, Any], keys: set[str], where: str) -> None:
    for key in data:
        if key not in keys:
            raise ConfigError(f"series.toml: {where}: unknown key {key!r} (known: {', '.join(sorted(keys))})")
