"""Find or fetch released wheels. pip does the fetching; the sha256 is ours to check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from patches import wheelfile
from patches.errors import CannotWrite, Unavailable
from patches.series import HERE, Series

WHEELS = HERE.parent / "build" / "wheels"


def _tags() -> tuple[str, str]:
    """(cp311, x86_64) of the running interpreter."""
    machine = sysconfig.get_platform().rsplit("-", 1)[-1]
    return f"cp{sys.version_info.major}{sys.version_info.minor}", machine


def pinned_name(series: Series) -> str:
    """Name of the pinned wheel for the running interpreter (or any, where it has none: the Python files
    of all of them are the same, which `refresh` checks)."""
    tag, machine = _tags()
    for name in series.wheels:
        if f"-{tag}-" in name and name.endswith(f"{machine}.whl"):
            return name
    raise Unavailable(f"sglang {series.version} is not pinned for {tag} {machine}; name a wheel with --wheel")


def find_base(series: Series, directory: Path = WHEELS) -> Path | None:
    """A pinned wheel lying in `directory`: the running interpreter's if there, else any; by sha256."""
    try:
        first = pinned_name(series)
    except Unavailable:
        first = ""
    for name in sorted(series.wheels, key=lambda n: n != first):
        path = directory / name
        if path.is_file() and wheelfile.sha256_file(path) == series.wheels[name]:
            return path
    return None


def base_wheel(series: Series, directory: Path = WHEELS, *, any_platform: bool = False) -> Path:
    """The pinned wheel for the running interpreter, fetched into `directory` when it is not there.

    `any_platform` is content with another interpreter's wheel (enough to read Python files).
    """
    found = find_base(series, directory)
    if found is not None and (any_platform or found.name == pinned_name(series)):
        return found
    name = pinned_name(series)
    sha = series.wheels[name]
    if (damaged := directory / name).is_file():
        got = wheelfile.sha256_file(damaged)
        print(f"{damaged}: sha256 {got}, pinned is {sha}: fetching it again", file=sys.stderr)
    return fetch(series.version, directory, sha256=sha)


def fetch(version: str, directory: Path = WHEELS, *, sha256: str | None = None) -> Path:
    """Download the wheel of sglang `version` for the running interpreter; returns its path.

    Raises Unavailable when pip cannot get it (its last line is quoted) or the hash is not the pinned one.
    """
    have = sorted(directory.glob(f"sglang-{version}-*.whl"))
    tag, machine = _tags()
    for path in have:
        if sha256 is None and f"-{tag}-" in path.name and path.name.endswith(f"{machine}.whl"):
            return path
        if sha256 is not None and wheelfile.sha256_file(path) == sha256:
            return path
    print(f"fetching sglang {version} for {tag} {machine}", file=sys.stderr)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as temp:
            path = _download(version, Path(temp))
            got = wheelfile.sha256_file(path)
            if sha256 is not None and got != sha256:
                raise Unavailable(f"{path.name}: the index served sha256 {got}, pinned is {sha256}")
            return path.replace(directory / path.name)
    except OSError as e:
        raise CannotWrite(f"{directory}: cannot be written: {e.strerror or e}") from None


def _download(version: str, into: Path) -> Path:
    arguments = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    arguments += ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
    done = subprocess.run(
        [*pip(), *arguments, "--dest", str(into), f"sglang=={version}"],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    found = next(into.glob("sglang-*.whl"), None)
    if done.returncode or found is None:
        last = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"pip cannot fetch sglang {version}: {last[-1].strip()}")
    return found


def pip() -> list[str]:
    """Command of a pip: this interpreter's own, else one on PATH. Raises Unavailable."""
    probe = [sys.executable, "-c", "import pip"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise Unavailable("pip is needed to fetch a wheel, and there is none (python -m ensurepip)")
