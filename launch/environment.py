"""Make the development environment: `python3 -m launch.environment` (what `make env` runs).

Standard library only, because it runs before anything is installed. In order:

1. a virtual environment in `.venv` with the hash-locked requirements of `docker/locks/dev-*.txt`;
2. the released SGLang wheel, pinned by sha256 in `patches/series.toml`, into `build/wheels`;
3. the patched wheel made from it by `python -m patches apply`, installed, and verified in place;
4. the `sparkserve` command, and last of all the stamp.

An environment without a stamp, or with the stamp of other inputs, is repaired: nothing half-built is trusted.
Exit codes: 0 done, 69 a package index did not answer, 73 no room or no permission, 78 wrong machine or Python.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UNAVAILABLE, CANNOT_WRITE, BAD_CONFIG = 69, 73, 78
PYTHONS = ((3, 11), (3, 12))  # those we keep a development lock for
NEED_BYTES = 13 * 10**9  # site-packages 9.7 GB, wheels in flight, fixtures; measured on x86-64
STAMP = "sparkserve-environment.json"


class SetupError(Exception):
    """What stops the build, in one line, with the exit code to leave with."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


@dataclass(frozen=True)
class Layout:
    """Where things lie, relative to the repository."""

    root: Path
    venv: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site(self) -> Path:
        return self.venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"

    @property
    def lock(self) -> Path:
        return self.root / "docker" / "locks" / lock_name("dev")

    @property
    def wheels(self) -> Path:
        return self.root / "build" / "wheels"

    @property
    def stamp(self) -> Path:
        return self.venv / STAMP


def lock_name(kind: str) -> str:
    """`dev-cp311-x86_64.txt` for the running interpreter and machine."""
    return f"{kind}-cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}.txt"


def say(text: str) -> None:
    print(f"env: {text}", file=sys.stderr, flush=True)


def inputs_digest(layout: Layout) -> str:
    """sha256 over everything that decides what the environment holds."""
    h = hashlib.sha256(f"{sys.version_info[:2]} {platform.machine()} 1\n".encode())
    patches = layout.root / "patches"
    for f in [layout.lock, patches / "series.toml", *sorted(patches.glob("*.patch"))]:
        h.update(f.name.encode() + b"\0" + f.read_bytes() + b"\0")
    return h.hexdigest()


def locked_names(lock_text: str) -> set[str]:
    """The normalised distribution names pinned by a requirements lock."""
    return {
        re.sub(r"[-_.]+", "_", m[1]).lower()
        for m in re.finditer(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==", lock_text, re.M)
    }


def missing_distributions(site: Path, lock_text: str) -> list[str]:
    """Locked distributions that have no complete `.dist-info` in `site` (a killed install leaves such)."""
    present = {
        re.sub(r"[-_.]+", "_", p.parent.name.rsplit(".dist-info", 1)[0].rsplit("-", 1)[0]).lower()
        for p in site.glob("*.dist-info/RECORD")
    }
    return sorted(locked_names(lock_text) - present)


def whole(layout: Layout) -> str | None:
    """None when the environment can be trusted, else why not."""
    try:
        stamp = json.loads(layout.stamp.read_text())
    except FileNotFoundError:
        return "not built yet" if not layout.python.exists() else "an earlier build did not finish"
    except ValueError:
        return "its stamp is not readable"
    if stamp.get("inputs") != inputs_digest(layout):
        return "locks or patches have changed"
    gone = missing_distributions(layout.site, layout.lock.read_text())
    if gone:
        return f"{len(gone)} packages are missing ({', '.join(gone[:3])}…)"
    if not (layout.venv / "bin" / "sparkserve").exists():
        return "the sparkserve command is missing"
    check = run([layout.python, "-m", "patches", "verify", layout.site], layout, quiet=True, fail=None)
    return "the patched engine has been changed" if check else None


def run(argv: Sequence[object], layout: Layout, *, fail: SetupError | None, quiet: bool = False) -> int:
    """Run a step in the repository; raise `fail` (when given) if it does not end well."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    sink = subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        [str(a) for a in argv], cwd=layout.root, env=env, stdout=sink, stderr=sink, check=False
    )
    if done.returncode and fail:
        raise fail
    return done.returncode


def preflight(layout: Layout) -> None:
    """Refuse at once what could only fail minutes later."""
    if sys.platform != "linux":
        raise SetupError(BAD_CONFIG, f"SGLang wheels exist for Linux only, this is {sys.platform}")
    if sys.version_info[:2] not in PYTHONS:
        have = ".".join(map(str, sys.version_info[:3]))
        want = " or ".join(f"{a}.{b}" for a, b in PYTHONS)
        raise SetupError(
            BAD_CONFIG, f"Python {have} has no lock here: use Python {want} (make PYTHON=/path/to/python)"
        )
    if not layout.lock.exists():
        raise SetupError(BAD_CONFIG, f"no lock for this machine: {layout.lock.name} (see `make lock`)")
    layout.wheels.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(layout.venv.parent).free
    have_bytes = 0 if not layout.site.exists() else NEED_BYTES * 3 // 4
    if free + have_bytes < NEED_BYTES:
        raise SetupError(
            CANNOT_WRITE,
            f"{free / 1e9:.1f} GB free in {layout.venv.parent}, {NEED_BYTES / 1e9:.0f} GB needed: make room "
            "or set SPARKSERVE_VENV to a folder on a larger disk",
        )


def create_venv(layout: Layout) -> None:
    """The virtual environment with a hash-checked uv in it."""
    uv = layout.venv / "bin" / "uv"
    if layout.python.exists() and uv.exists():
        return
    say(f"creating {layout.venv}")
    shutil.rmtree(layout.venv, ignore_errors=True)
    no_venv = SetupError(
        BAD_CONFIG,
        f"{sys.executable} cannot make virtual environments: install its venv module "
        f"(Debian, Ubuntu: apt-get install python3.{sys.version_info.minor}-venv)",
    )
    run([sys.executable, "-m", "venv", layout.venv], layout, fail=no_venv)
    lock = layout.root / "docker" / "locks" / "uv.txt"
    pip = [
        layout.python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
    ]
    run(
        [*pip, "-r", lock],
        layout,
        fail=SetupError(
            UNAVAILABLE,
            "uv could not be installed (see above): check the network or the package index you set",
        ),
    )


def install_locked(layout: Layout) -> None:
    n = len(locked_names(layout.lock.read_text()))
    say(f"installing {n} locked packages ({layout.lock.name}); about 3.5 GB to download the first time")
    fail = SetupError(
        UNAVAILABLE, "the locked packages could not be installed (see above); run it again to go on"
    )
    sync = [layout.venv / "bin" / "uv", "pip", "sync", "--python", layout.python, "--require-hashes"]
    run([*sync, layout.lock], layout, fail=fail)


def fetch_base_wheel(layout: Layout) -> Path:
    """The released wheel in build/wheels, by its pinned sha256: `python -m patches base` finds or fetches it."""
    argv = [layout.python, "-m", "patches", "base", "-o", layout.wheels]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(a) for a in argv], cwd=layout.root, env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SetupError(done.returncode, "the released sglang wheel could not be had (see above)")
    return Path(done.stdout.strip())


def install_engine(layout: Layout) -> None:
    """Apply the series to the released wheel, install the result, and verify it where it lies."""
    base = fetch_base_wheel(layout)
    for old in layout.wheels.glob("sglang-*+spark.*.whl"):
        old.unlink()
    broken = SetupError(BAD_CONFIG, "the patch series does not apply (see above)")
    run([layout.python, "-m", "patches", "apply", base, "-o", layout.wheels], layout, fail=broken)
    wheel = next(layout.wheels.glob("sglang-*+spark.*.whl"))
    say(f"installing {wheel.name}")
    pip = [
        layout.venv / "bin" / "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        layout.python,
        "--no-deps",
        "--reinstall",
    ]
    run([*pip, wheel], layout, fail=SetupError(CANNOT_WRITE, f"{wheel.name} could not be installed"))
    unsound = SetupError(BAD_CONFIG, "the installed engine is not whole (python -m patches verify, above)")
    run([layout.python, "-m", "patches", "verify", layout.site], layout, fail=unsound)


def shebang(python: Path) -> str:
    """First lines of a script for `python`: a blank, or more than 127 bytes, the kernel does not take; then sh starts it."""
    line = f"#!{python}\n"
    if not re.search(r"\s", str(python)) and len(os.fsencode(line)) <= 127:
        return line
    # Python reads the second and third line as one string, sh as exec and an argument never reached.
    return f"#!/bin/sh\n'''exec' {shlex.quote(str(python))} \"$0\" \"$@\"\n' '''\n"


def write_command(layout: Layout) -> None:
    """`sparkserve` runs from the repository: `launch` is too general a name for site-packages."""
    target = layout.venv / "bin" / "sparkserve"
    text = (
        f"{shebang(layout.python)}import sys\n\nsys.path.insert(0, {str(layout.root)!r})\n"
        "from launch.cli import main\n\nsys.exit(main())\n"
    )
    replace(target, text, 0o755)


def replace(target: Path, text: str, mode: int = 0o644) -> None:
    tmp = target.with_name(target.name + ".tmp")
    tmp.write_text(text)
    tmp.chmod(mode)
    tmp.replace(target)


@contextmanager
def only_one(layout: Layout) -> Iterator[None]:
    """Two `make` runs at once: the second waits for the first."""
    path = layout.root / "build" / "environment.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of the environment is under way: waiting for it")
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


def build(layout: Layout) -> bool:
    """Make or repair the environment; True when something had to be done."""
    preflight(layout)
    with only_one(layout):
        why = whole(layout)
        if why is None:
            return False
        say(f"{layout.venv.name}: {why}")
        t0 = time.monotonic()
        layout.stamp.unlink(missing_ok=True)
        create_venv(layout)
        install_locked(layout)
        install_engine(layout)
        write_command(layout)
        replace(layout.stamp, json.dumps({"inputs": inputs_digest(layout), "python": sys.version}) + "\n")
        say(f"ready after {time.monotonic() - t0:.0f} s")
    return True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m launch.environment", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="only say whether it is whole; exit 1 when not")
    args = parser.parse_args(argv)
    root = Path(__file__).resolve().parents[1]
    layout = Layout(root, Path(os.environ.get("SPARKSERVE_VENV") or root / ".venv"))
    try:
        if args.check:
            preflight(layout)
            why = whole(layout)
            if why:
                say(why)
            return 1 if why else 0
        build(layout)
    except SetupError as e:
        say(str(e))
        return e.code
    except PermissionError as e:
        say(f"cannot write {e.filename}: {e.strerror}")
        return CANNOT_WRITE
    except OSError as e:
        say(f"{e.strerror}: {e.filename or layout.venv}")
        return CANNOT_WRITE
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
