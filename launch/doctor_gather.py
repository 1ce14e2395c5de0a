"""Collect what `launch.doctor` judges. Every question has a time limit; what does not answer is None."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from launch import machine as machines
from launch.doctor import Docker, Evidence
from launch.errors import ConfigError
from launch.host.measure import measure
from launch.hub import DEFAULT_ENDPOINT, default_cache, offline
from launch.provenance import manifest_path

SECONDS = 15


def ask(argv: list[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr); 127 for a command that is not there or takes too long."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return 127, "", str(e)
    return done.returncode, done.stdout, done.stderr


def parse_cuda(header: str) -> tuple[int, int] | None:
    """The newest CUDA the driver runs, from nvidia-smi's header."""
    found = re.search(r"CUDA Version:\s*([0-9]{1,3})\.([0-9]{1,3})", header)
    return (int(found[1]), int(found[2])) if found else None


def parse_docker(code: int, out: str, err: str) -> Docker:
    """From `docker info --format '{{json .}}'`. With a client but no server, its answer has ServerErrors."""
    try:
        data = json.loads(out) if out.strip() else {}
    except ValueError:
        data = {}
    errors = data.get("ServerErrors") or []
    said = [line for line in [*errors, *err.splitlines()] if line.strip()]
    version = data.get("ServerVersion")
    if errors or not version:
        return Docker(True, said[0].strip() if said else f"docker info ended with {code}")
    return Docker(
        True,
        version=str(version),
        runtimes=tuple(data.get("Runtimes") or {}),
        cdi=any(path for place in data.get("CDISpecDirs") or [] for path in Path(place).glob("nvidia*")),
    )


def hub_state(endpoint: str, now: float | None = None) -> tuple[str | None, float | None]:
    """(why it does not answer or None, seconds our clock is ahead or None)."""
    import httpx

    try:
        reply = httpx.head(endpoint, timeout=SECONDS, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
        return f"{endpoint}: {type(e).__name__}: {str(e)[:120]}", None
    ahead = None
    if date := reply.headers.get("date"):
        try:
            ahead = (time.time() if now is None else now) - parsedate_to_datetime(date).timestamp()
        except ValueError:
            ahead = None
    if reply.status_code >= 500:
        return f"{endpoint}: HTTP {reply.status_code}", ahead
    return None, ahead


def gather(root: Path = Path("/")) -> Evidence:
    """This machine."""
    try:
        here = machines.detect()
        name, gpus = here.name, here.gpus
    except ConfigError:
        name, gpus = None, machines._gpus()[0]
    cuda: tuple[int, int] | None = None
    others: tuple[str, ...] = ()
    if gpus:
        cuda = parse_cuda(ask(["nvidia-smi"])[1])
        query = ["nvidia-smi", "--query-compute-apps=process_name", "--format=csv,noheader"]
        others = tuple(Path(x.strip()).name for x in ask(query)[1].splitlines() if x.strip())
    docker = None if manifest_path().exists() else Docker(False)
    if docker and shutil.which("docker"):
        docker = parse_docker(*ask(["docker", "info", "--format", "{{json .}}"]))
    place = default_cache()
    while not place.exists() and place != place.parent:
        place = place.parent
    asked = not offline()
    endpoint = os.environ.get("HF_ENDPOINT", DEFAULT_ENDPOINT)
    hub, ahead = hub_state(endpoint) if asked else (None, None)
    return Evidence(
        host=measure(root),
        machine=name,
        arch=platform.machine(),
        docker=docker,
        gpu_names=tuple(g.name for g in gpus),
        driver=gpus[0].driver if gpus else None,
        cuda=cuda,
        gpu_processes=others,
        disk_free=shutil.disk_usage(place).free,
        disk_place=str(place),
        hub=hub,
        hub_asked=asked,
        clock_off_s=ahead,
    )
