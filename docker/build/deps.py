"""Build step `deps`: the locked wheels, pruned, laid out as a CUDA toolkit, with byte-code for what the server imports.

Order matters: everything gets the build's epoch as its time before byte-code is written, because a .pyc holds the time of
its source and would otherwise be thrown away at the first import.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from common import ARCH, SITE, TAG, VENV, settle

HERE = Path(__file__).resolve().parent


def install(locks: Path) -> None:
    uv = shutil.which("uv") or sys.exit("deps: uv is not on PATH")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, "--no-python-downloads", VENV], check=True)
    # `sync`, not `install`: a lock made with overrides would be resolved again and fail on the overridden names.
    argv = [uv, "pip", "sync", "--require-hashes", "--only-binary", ":all:", "--link-mode", "copy"]
    argv += ["--python", VENV / "bin" / "python"]
    argv += [locks / f"image-{TAG}-{ARCH}.txt", locks / f"engine-{TAG}-{ARCH}.txt"]
    subprocess.run(argv, check=True)


def prune(rules: Path) -> int:
    """Remove what prune.toml names; bytes removed. A rule that matches nothing on either architecture would be dead."""
    total = 0
    for rule in tomllib.loads(rules.read_text())["prune"]:
        for pattern in rule["paths"]:
            for path in SITE.glob(pattern):
                files = [path] if path.is_file() or path.is_symlink() else [f for f in path.rglob("*") if f.is_file()]
                total += sum(f.lstat().st_size for f in files)
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return total


def contested(site: Path) -> list[str]:
    """Files that two wheels bring with different contents: which one is there would depend on the order of unpacking."""
    brought: dict[str, set[str]] = {}
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(newline="") as file:
            for name, digest, *_ in csv.reader(file):
                if digest:
                    brought.setdefault(name, set()).add(digest)
    return sorted(name for name, found in brought.items() if len(found) > 1 and (site / name).exists())


def toolkit() -> None:
    """Make the wheels' nvidia/cu13 tree pass for a CUDA toolkit: lib64, unversioned names, a link-time libcuda.

    FlashInfer and tvm-ffi link with -lcudart and -lcuda; the wheels carry only versioned files and no driver stub.
    """
    home = SITE / "nvidia" / "cu13"
    (home / "lib64").unlink(missing_ok=True)
    (home / "lib64").symlink_to("lib")
    for so in sorted((home / "lib").glob("lib*.so.*")):
        plain = home / "lib" / (so.name.split(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(so.name)
    stubs = home / "lib" / "stubs"
    stubs.mkdir(exist_ok=True)
    argv = ["gcc", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,--build-id=none"]
    source = b"static int none __attribute__((unused));"
    subprocess.run([*argv, "-o", stubs / "libcuda.so", "-"], input=source, check=True)


def driver_stub(folder: Path) -> Path:
    """A libcuda.so.1 that answers every call with 100 (no device), for importing without a driver; never in the image."""
    folder.mkdir(parents=True, exist_ok=True)
    names = set((HERE / "libcuda-symbols.txt").read_text().split())
    asks = {"cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"}
    code = "".join(f"int {n}(void) {{ return 100; }}\n" for n in sorted(names - asks))
    # Answering "not found" for an entry point, without touching its out-pointer, would leave garbage in it.
    code += "int cuInit(unsigned f) { return 100; }\n"
    code += "int cuGetProcAddress(const char *s, void **p, int v, unsigned long f) { *p = 0; return 500; }\n"
    code += "int cuGetProcAddress_v2(const char *s, void **p, int v, unsigned long f, void *r) { *p = 0; return 500; }\n"
    argv = ["gcc", "-w", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", "-"]
    subprocess.run(argv, input=code.encode(), check=True)
    return folder


def coherent() -> None:
    """The compiler, its headers and the runtime must be of one CUDA release, or nothing compiles at run time."""
    home = SITE / "nvidia" / "cu13"
    said = subprocess.run([home / "bin" / "nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    if "release 13.0," not in said:
        sys.exit(f"deps: nvcc is not of CUDA 13.0: {said.strip().splitlines()[-2:]}")
    runtime = (home / "include" / "cuda_runtime_api.h").read_text(errors="replace")
    if "#define CUDART_VERSION  13000" not in runtime:
        sys.exit("deps: the CUDA headers are not of 13.0")


def main() -> None:
    install(Path(sys.argv[1]))
    removed = prune(HERE / "prune.toml")
    if twice := contested(SITE):
        sys.exit(f"deps: two wheels bring different files of one name: {', '.join(twice)}; prune.toml must take them away")
    toolkit()
    coherent()
    settle(VENV)
    env = {**os.environ, "CUDA_HOME": str(SITE / "nvidia" / "cu13")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["LD_LIBRARY_PATH"] = str(driver_stub(Path("/tmp/stub")))
    subprocess.run([VENV / "bin" / "python", HERE / "import_check.py"], check=True, env=env, cwd="/")
    settle(VENV)
    print(f"deps: pruned {removed / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
