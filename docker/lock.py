"""Write the hash-locked requirements: `python docker/lock.py [NAME…]` (what `make lock` runs).

Each lock is named in `docker/locks/locks.toml` and compiled by `uv pip compile --generate-hashes` from
`docker/locks/<input>`, for one Python and one architecture. Pins already in a lock are kept unless `--upgrade` is given, so
that running it again changes nothing; `--check` says which locks would change and exits 1.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"


@dataclass(frozen=True)
class Lock:
    """One lock file and how it is compiled."""

    name: str
    input: str
    python: str
    arch: str
    overrides: str | None

    @property
    def path(self) -> Path:
        return LOCKS / f"{self.name}-cp{self.python.replace('.', '')}-{self.arch}.txt"


def read(text: str) -> list[Lock]:
    """The locks named by locks.toml."""
    return [
        Lock(name, spec["input"], python, arch, spec.get("overrides"))
        for name, spec in tomllib.loads(text).items()
        for python in spec["python"]
        for arch in spec["arch"]
    ]


def compile_lock(lock: Lock, out: Path, upgrade: bool) -> None:
    """Resolve `lock` into `out`; SGLang is left out, since the image and the environment install our patched wheel."""
    argv = ["uv", "pip", "compile", lock.input, "--output-file", str(out), "--python-version", lock.python]
    # glibc 2.34 is the floor of SGLang's own wheel on both architectures.
    argv += [
        "--python-platform",
        f"{lock.arch}-manylinux_2_34",
        "--only-binary",
        ":all:",
        "--prerelease",
        "allow",
    ]
    argv += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-package", "sglang", "--quiet"]
    if lock.overrides:
        argv += ["--overrides", lock.overrides]
    if upgrade:
        argv.append("--upgrade")
    subprocess.run(argv, cwd=LOCKS, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these locks (a lock's name as in locks.toml)")
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases the inputs allow")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a lock is not fresh")
    args = parser.parse_args()
    stale = []
    for lock in read((LOCKS / "locks.toml").read_text()):
        if args.names and lock.name not in args.names:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            out = Path(tmp) / lock.path.name
            if lock.path.exists():
                shutil.copy(lock.path, out)
            try:
                compile_lock(lock, out, args.upgrade)
            except subprocess.CalledProcessError:
                print(f"lock: {lock.path.name} cannot be resolved (see above)", file=sys.stderr)
                return 69
            if lock.path.exists() and out.read_text() == lock.path.read_text():
                continue
            stale.append(lock.path.name)
            if not args.check:
                tmp_target = lock.path.with_suffix(".tmp")
                shutil.copy(out, tmp_target)
                tmp_target.replace(lock.path)
    for name in stale:
        print(f"lock: {name} {'is not fresh: run make lock' if args.check else 'written'}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
