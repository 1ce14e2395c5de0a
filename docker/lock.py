"""Write the hash-locked requirements: `python docker/lock.py [NAME…]` (what `make lock` runs).

Each lock is named in `docker/locks/locks.toml` and compiled by `uv pip compile --generate-hashes` from
`docker/locks/<input>`, for one Python and one architecture. Pins already in a lock are kept unless `--upgrade` is given, so
that running it again changes nothing; `--check` says which locks would change and exits 1. The first line of a lock holds the
hash of what it was compiled from, so that a forgotten `make lock` shows without asking an index.

The released SGLang has locks of its own, `engine-cp313-<arch>.txt`: one wheel each, as `patches/series.toml` pins it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
SERIES = LOCKS.parents[1] / "patches" / "series.toml"
ENGINE = "engine"
ENGINE_PYTHON = "3.13"  # the image's


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
        return lock_path(self.name, self.python, self.arch)

    def header(self, folder: Path = LOCKS) -> str:
        """The first line: a hash over the contents of everything the lock is compiled from."""
        found = hashlib.sha256(f"{self.python} {self.arch}\n".encode())
        for name in filter(None, (self.input, self.overrides)):
            found.update((folder / name).read_bytes())
        return f"# written by docker/lock.py; inputs sha256:{found.hexdigest()}"


def lock_path(name: str, python: str, arch: str) -> Path:
    return LOCKS / f"{name}-cp{python.replace('.', '')}-{arch}.txt"


def engine_locks(series: str) -> dict[Path, str]:
    """path -> text of the engine's locks, from the text of series.toml. ValueError when an architecture has no wheel."""
    base = tomllib.loads(series)["base"]
    tag, found = f"cp{ENGINE_PYTHON.replace('.', '')}", {}
    for arch in ("x86_64", "aarch64"):
        hashes = [
            digest
            for name, digest in base["wheels"].items()
            if f"-{tag}-" in name and name.endswith(f"_{arch}.whl")
        ]
        if len(hashes) != 1:
            raise ValueError(
                f"patches/series.toml: [base.wheels] has {len(hashes)} wheels of {tag} for {arch}, not one"
            )
        found[lock_path(ENGINE, ENGINE_PYTHON, arch)] = (
            "# written by docker/lock.py from [base.wheels] of patches/series.toml\n"
            f"sglang=={base['version']} \\\n    --hash=sha256:{hashes[0]}\n"
        )
    return found


def replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


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
    if not args.names or ENGINE in args.names:
        try:
            wanted = engine_locks(SERIES.read_text())
        except ValueError as e:
            print(f"lock: {e}", file=sys.stderr)
            return 78
        for path, text in wanted.items():
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
                if not args.check:
                    replace(path, text)
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
            # uv is told to write no header; without ours, which it keeps or drops, only pins and hashes are compared.
            body = "".join(
                line for line in out.read_text().splitlines(keepends=True) if not line.startswith("#")
            )
            text = f"{lock.header()}\n{body}"
            if lock.path.exists() and text == lock.path.read_text():
                continue
            stale.append(lock.path.name)
            if not args.check:
                replace(lock.path, text)
    for name in stale:
        print(f"lock: {name} {'is not fresh: run make lock' if args.check else 'written'}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
