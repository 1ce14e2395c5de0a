"""A redacted archive for bug reports: findings, the kernel's memory tables, the guard's state, the ends of logs.

No key, token, home path, user or host name leaves the machine: known secrets are blanked by value, everything that
looks like one by pattern, and an archive in which one is still found is not written.
"""

from __future__ import annotations

import io
import os
import re
import socket
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from launch.errors import CannotWrite, CheckFailed

TAIL_BYTES = 200_000
HOST_FILES = (
    "meminfo",
    "pressure/memory",
    "self/cgroup",
    "version",
    "sys/vm/min_free_kbytes",
    "sys/vm/swappiness",
)
SECRET_NAME = re.compile(r"(?:TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH)", re.IGNORECASE)
PATTERNS = (
    re.compile(r"\b(?:hf|sk|ghp|gho|ghs|glpat|xox[abp])[_-][A-Za-z0-9_-]{8,}"),
    re.compile(r"(?<=Bearer )[^\s'\"]+", re.IGNORECASE),
    re.compile(r"(?<=Basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(
        r"""(?i)(?:api[-_]?key|token|secret|password)["']?\s*[:=]\s*["']?(?!None\b|null\b|\*{3})([^\s"',}]{4,})"""
    ),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


def secrets_of(environ: Mapping[str, str], files: Iterable[Path]) -> list[str]:
    """Values that must not appear: variables named like secrets, and the content of key files."""
    found = [v for k, v in environ.items() if SECRET_NAME.search(k) and len(v) >= 4 and not v.startswith("/")]
    for path in files:
        try:
            found.append(path.read_text(errors="replace").strip())
        except OSError:
            continue
    return sorted({v for v in found if len(v) >= 4}, key=len, reverse=True)


def redact(text: str, secrets: Iterable[str], homes: Iterable[str], names: Iterable[str] = ()) -> str:
    """`text` without secrets, home folders (`~`), user and host names."""
    for value in secrets:
        text = text.replace(value, "***")
    for pattern in PATTERNS:
        text = pattern.sub(_blank, text)
    for home in sorted({h.rstrip("/") for h in homes if len(h) > 1}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?=/|\b)", "~", text)
    text = re.sub(r"/(?:home|Users)/[^/\s'\":,]+", "~", text)
    text = re.sub(r"(?<![\w/])/root(?=/|\b)", "~", text)
    for name in names:
        if len(name) >= 3:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "***", text)
    return text


def _blank(m: re.Match[str]) -> str:
    return m[0].replace(m[1], "***") if m.re.groups else "***"


def parts(state_dir: Path, root: Path = Path("/")) -> dict[str, str]:
    """Name in the archive to text, not redacted yet."""
    found = {}
    for name in HOST_FILES:
        if text := _tail(root / "proc" / name):
            found[f"proc/{name}"] = text
    for pattern in ("state.json", "admission/*.json", "admission.json", "logs/*.log"):
        for path in sorted(state_dir.glob(pattern)):
            found[f"state/{path.relative_to(state_dir)}"] = _tail(path)
    return found


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as f:
            data = f.read() if str(path).startswith("/proc") else _last(f)
    except OSError:
        return ""
    return data.decode(errors="replace")


def _last(f: io.BufferedReader) -> bytes:
    size = f.seek(0, os.SEEK_END)
    f.seek(max(0, size - TAIL_BYTES))
    return f.read()


def write(
    path: Path, texts: Mapping[str, str], secrets: list[str], homes: list[str], names: list[str]
) -> None:
    """The archive (tar.gz), every text redacted. CannotWrite; CheckFailed when a secret would still be in it."""
    clean = {}
    for name, text in texts.items():
        done = redact(text, secrets, homes, names)
        if any(s in done for s in secrets) or any(h in done for h in homes if len(h) > 5):
            raise CheckFailed(f"{name}: a secret is left after redaction; no bundle was written")
        clean[redact(name, secrets, homes, names)] = done
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(temporary, "w:gz") as tar:
            for name, text in sorted(clean.items()):
                data = text.encode()
                entry = tarfile.TarInfo(f"sparkserve-bundle/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o644
                tar.addfile(entry, io.BytesIO(data))
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise CannotWrite(
            f"{path}: {e.strerror or e}; give --bundle a file in a folder that exists and is writable"
        ) from e


def private_names() -> list[str]:
    """This user's and this host's name."""
    return [
        n for n in (os.environ.get("USER", ""), socket.gethostname()) if n and n not in ("root", "localhost")
    ]
