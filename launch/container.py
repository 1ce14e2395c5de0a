"""A preset as a container: options for the Docker SDK, the same as a `docker run` line, a compose file, a systemd unit.

Pure: nothing here talks to Docker. The container gets no privilege, a read-only root, one cache volume, the hub cache
read-only, and a port published on loopback; it is never restarted from outside, because the keeper inside bounds restarts
and a tripped memory guard must not run into the same wall again.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UID = 10001  # docker/build/account.py
PORT = 30000  # inside the container
METRICS_PORT = 30001  # the guard's, inside the container (docs/operations.md)
CACHE_VOLUME = "sparkserve-cache"
LABEL = "io.sparkserve.preset"
KEY_INSIDE = "/run/secrets/api-key"
STOP_GRACE_S = 60  # more than supervisor's stopwaitsecs, so that generations drain
# Enough for the engine's queues; on unified memory every byte of /dev/shm is taken from the model (pains.md 60).
SHM_BYTES = 512 << 20


@dataclass(frozen=True)
class Spec:
    """What to run. `hub` is the host's Hugging Face home, mounted read-only at /models."""

    preset: str
    image: str
    gpu: bool = True
    bind: str = "127.0.0.1"
    port: int = PORT
    hub: Path | None = None
    key_file: Path | None = None
    key_group: int | None = None  # gid by which the container's user reads the key file
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    network: str | None = None
    metrics_port: int | None = None  # on the host, of `bind`; None: not published

    @property
    def published(self) -> list[tuple[int, int]]:
        """(port on the host, port inside) of everything published on `bind`."""
        return [(self.port, PORT), *([(self.metrics_port, METRICS_PORT)] if self.metrics_port else [])]

    @property
    def name(self) -> str:
        return f"sparkserve-{self.preset}"

    @property
    def command(self) -> list[str]:
        key = ["--api-key-file", KEY_INSIDE] if self.key_file else []
        return [self.preset, *self.arguments, *key]


def mounts(spec: Spec) -> list[tuple[str, str, str]]:
    """(source, target, mode) of every volume."""
    found = [(CACHE_VOLUME, "/cache", "rw")]
    if spec.hub is not None:
        found.append((str(spec.hub), "/models", "ro"))
    if spec.key_file is not None:
        found.append((str(spec.key_file), KEY_INSIDE, "ro"))
    return found


TMPFS = {
    "/run/spark": f"rw,nosuid,nodev,noexec,uid={UID},gid={UID},mode=0750,size=64m",
    "/tmp": "rw,nosuid,nodev,exec,mode=1777,size=2g",  # noqa: S108  Triton loads what it compiled there
}


def sdk_options(spec: Spec) -> dict[str, Any]:
    """Keyword arguments of docker.containers.run; device requests as plain dictionaries."""
    options: dict[str, Any] = {
        "image": spec.image,
        "command": spec.command,
        "name": spec.name,
        "detach": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": TMPFS,
        "shm_size": SHM_BYTES,
        "pids_limit": 4096,
        "volumes": {source: {"bind": target, "mode": mode} for source, target, mode in mounts(spec)},
        "environment": dict(spec.environment),
        "labels": {LABEL: spec.preset},
        "log_config": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "4"}},
    }
    if spec.key_group is not None:
        options["group_add"] = [str(spec.key_group)]
    if spec.network:
        options["network_mode"] = spec.network
    else:
        options["ports"] = {f"{inside}/tcp": (spec.bind, port) for port, inside in spec.published}
    if spec.gpu:
        options["device_requests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
    return options


def docker_argv(spec: Spec) -> list[str]:
    """The same as a command line."""
    argv = ["docker", "run", "--detach", "--name", spec.name, "--read-only", "--cap-drop", "ALL"]
    argv += ["--security-opt", "no-new-privileges:true", "--shm-size", str(SHM_BYTES), "--pids-limit", "4096"]
    argv += ["--stop-timeout", str(STOP_GRACE_S), "--label", f"{LABEL}={spec.preset}"]
    argv += ["--log-opt", "max-size=50m", "--log-opt", "max-file=4"]
    for target, how in TMPFS.items():
        argv += ["--tmpfs", f"{target}:{how}"]
    for source, target, mode in mounts(spec):
        argv += ["--volume", f"{source}:{target}:{mode}"]
    for key, value in spec.environment:
        argv += ["--env", f"{key}={value}"]
    if spec.key_group is not None:
        argv += ["--group-add", str(spec.key_group)]
    if spec.network:
        argv += ["--network", spec.network]
    else:
        for port, inside in spec.published:
            argv += ["--publish", f"{spec.bind}:{port}:{inside}"]
    if spec.gpu:
        argv += ["--gpus", "all"]
    return [*argv, spec.image, *spec.command]


def compose(spec: Spec) -> str:
    """A compose file. JSON strings are YAML strings, so values need no quoting rules of our own."""
    q = json.dumps
    lines = [
        "# Rendered by `sparkserve render compose`; render it again instead of editing it.",
        "services:",
        "  server:",
        f"    image: {q(spec.image)}",
        f"    container_name: {q(spec.name)}",
        f"    command: {q(spec.command)}",
        "    read_only: true",
        '    cap_drop: ["ALL"]',
        '    security_opt: ["no-new-privileges:true"]',
        f"    shm_size: {SHM_BYTES}",
        "    pids_limit: 4096",
        f"    stop_grace_period: {STOP_GRACE_S}s",
        '    restart: "no"',
        "    labels:",
        f"      {LABEL}: {q(spec.preset)}",
        "    tmpfs:",
        *[f"      - {q(f'{target}:{how}')}" for target, how in TMPFS.items()],
        "    volumes:",
        *[f"      - {q(f'{source}:{target}:{mode}')}" for source, target, mode in mounts(spec)],
    ]
    if spec.key_group is not None:
        lines.append(f"    group_add: [{q(str(spec.key_group))}]")
    if spec.environment:
        lines += ["    environment:", *[f"      {key}: {q(value)}" for key, value in spec.environment]]
    if spec.network:
        lines.append(f"    network_mode: {q(spec.network)}")
    else:
        ports = [f"{spec.bind}:{port}:{inside}" for port, inside in spec.published]
        lines += ["    ports:", *[f"      - {q(p)}" for p in ports]]
    if spec.gpu:
        lines += [
            "    deploy:",
            "      resources:",
            "        reservations:",
            '          devices: [{driver: nvidia, count: all, capabilities: ["gpu"]}]',
        ]
    return "\n".join([*lines, "volumes:", f"  {CACHE_VOLUME}:", f"    name: {CACHE_VOLUME}"]) + "\n"


def systemd(spec: Spec) -> str:
    """A unit that runs the container in the foreground. Exit codes 75 and 78 must not be retried."""
    argv = [a for a in docker_argv(spec) if a != "--detach"]
    run = " \\\n  ".join(_unit_word(a) for a in ["/usr/bin/docker", *argv[1:]])
    return (
        "# Rendered by `sparkserve render systemd`; render it again instead of editing it.\n"
        "[Unit]\n"
        f"Description=SparkServe {spec.preset}\n"
        "Requires=docker.service\n"
        "After=docker.service network-online.target\n"
        "Wants=network-online.target\n\n"
        "[Service]\n"
        f"ExecStartPre=-/usr/bin/docker rm --force {spec.name}\n"
        f"ExecStart={run}\n"
        f"ExecStop=/usr/bin/docker stop --time {STOP_GRACE_S} {spec.name}\n"
        f"TimeoutStopSec={STOP_GRACE_S + 30}\n"
        "Restart=on-failure\n"
        "RestartSec=30\n"
        "RestartPreventExitStatus=75 78\n\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def _unit_word(word: str) -> str:
    """Quote for a unit's command line, where % and $ have meanings of their own."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != shlex.quote(word) or " " in word else escaped
