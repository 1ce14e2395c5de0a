"""Read, re-version and write wheels. Output is deterministic: same members, same bytes.

Member order is by path with the dist-info last (as the wheel format recommends) and RECORD at the very end;
time stamps are 1980-01-01, the earliest a zip file can say; modes and compression kinds are kept.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patches.errors import CannotWrite, ConfigError

_WHEEL_NAME = re.compile(r"^(?P<name>[^-]+)-(?P<version>[^-]+)-(?P<tags>[^-]+-[^-]+-[^-]+)\.whl$")
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
MANIFEST = "SPARK_PATCHES.json"  # in the dist-info: which patches the wheel holds
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Member:
    """One file of a wheel with the zip attributes worth keeping."""

    data: bytes
    mode: int = 0o100644
    compress: int = zipfile.ZIP_DEFLATED


Members = dict[str, Member]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def record_hash(data: bytes) -> str:
    """sha256 as RECORD spells it: urlsafe base64 without padding."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def name_parts(path: Path) -> tuple[str, str, str]:
    """(distribution, version, python-abi-platform tags) of a wheel's file name."""
    match = _WHEEL_NAME.match(path.name)
    if match is None:
        raise ConfigError(f"{path.name}: not a wheel's file name (name-version-python-abi-platform.whl)")
    return match["name"], match["version"], match["tags"]


def read(path: Path) -> Members:
    """Every file of a wheel, checked against the zip's own CRC. Raises ConfigError for a broken one."""
    members: Members = {}
    try:
        with zipfile.ZipFile(path) as z:
            for info in z.infolist():
                if info.is_dir():
                    continue
                parts = info.filename.split("/")
                if info.filename.startswith("/") or "\\" in info.filename or ".." in parts:
                    raise ConfigError(f"{path.name}: unsafe member {info.filename!r}")
                mode = info.external_attr >> 16 or 0o100644
                members[info.filename] = Member(z.read(info), mode, info.compress_type)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such wheel") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as e:
        raise ConfigError(f"{path.name}: not a whole zip file: {e}") from None
    return members


def dist_info(members: Members | set[str], what: str) -> str:
    """Name of the one .dist-info directory."""
    found = sorted({m.split("/")[0] for m in members if m.split("/")[0].endswith(".dist-info")})
    if len(found) != 1:
        raise ConfigError(f"{what}: has {len(found)} .dist-info directories, a wheel has one")
    return found[0]


def records(text: str) -> dict[str, str]:
    """path -> hash field of a RECORD file; the hash is empty for RECORD itself and for byte code."""
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) >= 2}


def bad_records(entries: dict[str, str], read_file: Callable[[str], bytes | None]) -> list[str]:
    """Files that are missing or do not have the hash their RECORD gives, sorted."""
    bad = []
    for path, want in entries.items():
        if not want.startswith("sha256="):
            continue
        data = read_file(path)
        if data is None or record_hash(data) != want:
            bad.append(path)
    return sorted(bad)


def metadata_version(text: str) -> str:
    """The Version field of a METADATA file."""
    for line in text.split("\n\n", 1)[0].splitlines():
        if line.startswith("Version:"):
            return line.partition(":")[2].strip()
    raise ConfigError("METADATA has no Version")


def set_version(members: Members, old: str, new: str, manifest: dict[str, object]) -> Members:
    """The members under a new version: dist-info name, METADATA, the package's own `_version.py`, RECORD.

    `sglang.__version__` comes from `sglang/_version.py` (written at build time); only a tree without that
    file asks the installed metadata. `manifest` is stored in the dist-info, for readers of the result.
    """
    info = dist_info(members, "the base wheel")
    name = info.split("-")[0]
    new_info = f"{name}-{new}.dist-info"
    out = {
        (new_info + path[len(info) :] if path.startswith(info + "/") else path): member
        for path, member in members.items()
    }
    key = f"{new_info}/METADATA"
    if key not in out:
        raise ConfigError(f"the base wheel has no {info}/METADATA")
    header, blank, body = out[key].data.partition(b"\n\n")  # the body is a README and may say anything
    head = _edit(Member(header), key, [(rf"^Version: {re.escape(old)}$", f"Version: {new}")])
    out[key] = Member(head.data + blank + body, out[key].mode, out[key].compress)
    key = f"{name}/_version.py"
    if key not in out:
        raise ConfigError(f"the base wheel has no {key}, where {name}.__version__ comes from")
    public, _, local = new.partition("+")
    parts = [*public.split("."), *([local] if local else [])]
    version_tuple = ", ".join(p if p.isdigit() else repr(p) for p in parts)
    out[key] = _edit(
        out[key],
        key,
        [
            (rf"^(__version__ = version = )'{re.escape(old)}'$", rf"\g<1>'{new}'"),
            (r"^(__version_tuple__ = version_tuple = )\(.*\)$", rf"\g<1>({version_tuple})"),
        ],
    )
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    out[f"{new_info}/{MANIFEST}"] = Member(text.encode())
    return write_record(out)


def _edit(member: Member, path: str, edits: list[tuple[str, str]]) -> Member:
    text = member.data.decode("utf-8")
    for pattern, replacement in edits:
        text, n = re.subn(pattern, replacement, text, count=2, flags=re.MULTILINE)
        if n != 1:
            raise ConfigError(f"the base wheel's {path}: expected one line like {pattern}, found {n}")
    return Member(text.encode("utf-8"), member.mode, member.compress)


def write_record(members: Members) -> Members:
    """The members with RECORD computed from them."""
    info = dist_info(members, "the wheel")
    key = f"{info}/RECORD"
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for path in _ordered(members):
        if path.split("/")[-1] in _UNHASHED and path.startswith(info):
            continue
        rows.writerow([path, record_hash(members[path].data), len(members[path].data)])
    rows.writerow([key, "", ""])
    kept = members.get(key, Member(b""))
    # Signatures over the old RECORD would be wrong now.
    left = {p: m for p, m in members.items() if not p.endswith((".dist-info/RECORD.jws", "/RECORD.p7s"))}
    return {**left, key: Member(out.getvalue().encode(), kept.mode, kept.compress)}


def _ordered(members: Members) -> list[str]:
    def key(path: str) -> tuple[bool, bool, str]:
        in_info = path.split("/", maxsplit=1)[0].endswith(".dist-info")
        return in_info, in_info and path.endswith("/RECORD"), path

    return sorted(members, key=key)


def write(members: Members, target: Path) -> None:
    """Write a wheel at `target`, whole or not at all."""
    with writing(target) as part, zipfile.ZipFile(part, "w") as z:
        for path in _ordered(members):
            member = members[path]
            info = zipfile.ZipInfo(path, _EPOCH)
            info.create_system = 3  # Unix: the mode below means something
            info.external_attr = member.mode << 16
            info.compress_type = member.compress
            z.writestr(info, member.data, compresslevel=6)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that replaces it when the block succeeds and goes otherwise."""
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
        part = Path(name)
        yield part
        part.chmod(0o644)
        part.replace(target)
    except OSError as e:
        raise CannotWrite(f"{target}: cannot be written: {e.strerror or e}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_tree(members: Members, target: Path) -> None:
    """Unpack the members at `target`, which must not exist; whole or not at all."""
    if target.exists():
        raise CannotWrite(f"{target}: exists already; remove it or name another directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temp:
            root = Path(temp) / "tree"
            root.mkdir()
            for path, member in members.items():
                file = root / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(member.data)
                file.chmod(member.mode & 0o777)
            root.replace(target)
    except OSError as e:
        raise CannotWrite(f"{target}: cannot be written: {e.strerror or e}") from None
