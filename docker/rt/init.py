"""PID 1 of the container: `docker run IMAGE [PRESET [serve options] | COMMAND …]`.

Without arguments it lists the presets and how to run one. A `sparkserve` command runs as that command. Anything else is a
preset: its command line is resolved first, so that a wrong one ends at once with its own message; then supervisord is
started, signals are passed on, orphans reaped, lines written whole, and the container ends with the code that the keeper left
(0 after a stop).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RUN = Path(os.environ.get("SPARK_RUN", "/run/spark"))
CACHE = Path(os.environ.get("SPARK_CACHE", "/cache"))
MANIFEST = Path("/etc/sparkserve/manifest.json")
SEED = Path("/opt/sparkserve-kernels/jit")
HERE = Path(__file__).resolve().parent
PYTHON = sys.executable if sys.prefix != sys.base_prefix else "/opt/venv/bin/python"
PORT = "30000"
LEAST_FREE = 1 << 20  # bytes the cache volume must have: less than one compiled kernel needs
BAD_CONFIG, CANNOT_WRITE = 78, 73


def commands() -> set[str]:
    """The sub-commands of `sparkserve`, which are not presets (docker/build/account.py writes them)."""
    return set((HERE / "commands").read_text().split())


def usage() -> int:
    code = subprocess.run([PYTHON, "-m", "launch", "presets"], check=False).returncode
    print(
        "\nRun one:\n"
        "  docker run --gpus all -p 127.0.0.1:30000:30000 -v HF_CACHE:/models -v spark-cache:/cache IMAGE PRESET\n"
        "Show what would run:  docker run IMAGE PRESET --print\n"
        "Other commands:       docker run IMAGE " + " | ".join(sorted(commands()))
    )
    return code


def cache_key(manifest: bytes, driver: str, capability: str) -> str:
    """One folder per image, GPU architecture and driver: compiled kernels of another must never be used."""
    image = hashlib.sha256(manifest).hexdigest()[:12]
    return f"{image}-{capability or 'cpu'}-{driver or 'nodriver'}"


def driver_version() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((w for w in words if w[:1].isdigit() and "." in w), "")


def capability() -> str:
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        out = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = out.strip().splitlines()[0].strip() if out.strip() else ""
    return "sm" + first.replace(".", "") if first.replace(".", "").isdigit() else ""


def seed(source: Path, target: Path) -> None:
    """Put SGLang's prebuilt objects where its cache has none. A leaf (`deps-*`) is there whole or not at all."""
    for leaf in source.glob("*/*/*/deps-*"):
        there = target / leaf.relative_to(source)
        if not there.exists():
            tmp = there.with_name(f".{there.name}.{os.getpid()}")
            shutil.copytree(leaf, tmp, copy_function=shutil.copyfile)
            tmp.rename(there)


def prepare_cache() -> dict[str, str]:
    """Make the keyed cache folder; the environment that points every compiler at it. OSError when it cannot be written."""
    manifest = MANIFEST.read_bytes() if MANIFEST.exists() else b""
    home = CACHE / cache_key(manifest, driver_version(), capability())
    for name in ("sglang", "jit", "home"):
        (home / name).mkdir(parents=True, exist_ok=True)
    probe = home / ".writable"
    try:
        probe.write_bytes(b"x" * LEAST_FREE)
    except OSError as e:  # a failed write names no file
        raise OSError(e.errno, e.strerror, str(home)) from e
    finally:
        probe.unlink(missing_ok=True)
    seed(SEED, home / "jit")
    (home / "used").write_text(f"{time.time():.0f}\n")
    return {
        "SGLANG_CACHE_DIR": str(home / "sglang"),
        "SGLANG_JIT_CACHE_DIR": str(home / "jit"),
        "HOME": str(home / "home"),
    }


def lines(pipe: int, as_json: bool) -> None:
    """Copy supervisord's output to ours in whole lines, as JSON lines when asked."""
    with os.fdopen(pipe, "rb", buffering=0) as source:
        rest = b""
        while chunk := source.read(65536):
            *whole, rest = (rest + chunk).split(b"\n")
            if whole:
                emit(whole, as_json)
        if rest:
            emit([rest], as_json)


def emit(whole: list[bytes], as_json: bool) -> None:
    if as_json:
        now = time.time()
        texts = [w.decode(errors="replace").rstrip("\r") for w in whole]
        data = "".join(json.dumps({"t": round(now, 3), "line": t}) + "\n" for t in texts).encode()
    else:
        data = b"\n".join(whole) + b"\n"
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def key_file(argv: list[str]) -> str:
    """The path after --api-key-file, or nothing. The guard reads the key there; the key itself is in no argv or environment."""
    for i, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name == "--api-key-file":
            return value if sign else argv[i + 1] if i + 1 < len(argv) else ""
    return ""


def supervise(argv: list[str]) -> int:
    try:
        RUN.mkdir(parents=True, exist_ok=True)
        for name in ("exit-code", "server.pid", "phase", "state.json", "admission.json"):
            (RUN / name).unlink(missing_ok=True)
        (RUN / "serve.json").write_text(json.dumps(argv))
        env = {
            **os.environ,
            **prepare_cache(),
            "SPARK_PORT": PORT,
            "SPARK_KEY_FILE": key_file(argv),
            "SPARKSERVE_PHASE_FILE": str(RUN / "phase"),
            "SPARKSERVE_ADMISSION_FILE": str(RUN / "admission.json"),
        }
    except OSError as e:
        print(
            f"init: cannot write {e.filename}: {e.strerror}; mount a writable /cache and a tmpfs /run/spark",
            flush=True,
        )
        return BAD_CONFIG
    read, write = os.pipe()
    daemon = [PYTHON, "-m", "supervisor.supervisord", "-c", str(HERE / "supervisord.conf")]
    child = subprocess.Popen(daemon, stdout=write, stderr=write, env=env)
    os.close(write)
    copier = threading.Thread(target=lines, args=(read, os.environ.get("SPARK_LOG") == "json"), daemon=True)
    copier.start()
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        child.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, pass_on)
    status = reap_until(child.pid)
    copier.join(timeout=2)
    return ending(status, asked)


def reap_until(pid: int) -> int:
    """Reap every orphan that comes to PID 1, until `pid` itself ends; its wait status."""
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if ended == pid:
            return status


def ending(status: int, asked: list[int]) -> int:
    """The container's exit code: the keeper's, else 0 after a stop, else 70."""
    try:
        code, _, why = (RUN / "exit-code").read_text().strip().partition(" ")
        if why:
            emit([f"ending with exit code {code}: {why}".encode()], os.environ.get("SPARK_LOG") == "json")
        return int(code)
    except (OSError, ValueError):
        return 0 if asked or os.waitstatus_to_exitcode(status) == 0 else 70


def main(argv: list[str]) -> int:
    if not argv:
        return usage()
    if argv[0] in commands() or argv[0].startswith("-"):
        os.execv(PYTHON, [PYTHON, "-m", "launch", *argv])
    if "--print" in argv:
        os.execv(PYTHON, [PYTHON, "-m", "launch", "serve", *argv])
    # The container is the boundary: inside, listen on every address; outside, publish to loopback.
    serve = [*argv, "--host", "0.0.0.0", "--port", PORT]  # noqa: S104
    check = subprocess.run(
        [PYTHON, "-m", "launch", "serve", *serve, "--print"], stdout=subprocess.DEVNULL, check=False
    )
    if check.returncode:
        return BAD_CONFIG if check.returncode == 2 else check.returncode
    return supervise(serve)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
