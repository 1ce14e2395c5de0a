"""A container of our image, owned through the Docker SDK: `docker run IMAGE PRESET`, published on loopback."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import container
from smoke.errors import CONFIG, ENGINE, SmokeError
from smoke.targets.base import Boot, Identity, NotRun, read_meminfo
from smoke.targets.process import free_port
from smoke.targets.tunnel import PROBE, Tunnel
from smoke.wait import Life

LABEL = "io.sparkserve.smoke"
_FIND = r"find /cache -name '*.so' -printf '%T@ %p\n' -o -name '*.cubin' -printf '%T@ %p\n'"


@dataclass(frozen=True)
class Run:
    """How to run the image, beside the preset.

    hub: the host's Hugging Face home, mounted read-only at /models; mounts: more `HOST:INSIDE` folders, read-only;
    network: None publishes the port on loopback, `host` uses the host's (then the port is the image's own).
    """

    image: str
    gpu: bool = True
    hub: Path | None = None
    mounts: tuple[str, ...] = ()
    network: str | None = None
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    key_file: Path | None = None
    key_group: int | None = None  # by which the container's user reads the key file


def options(preset: str, run: Run, port: int, boot: Boot) -> dict[str, Any]:
    """Keyword arguments of containers.run: those of `sparkserve run`, and what the suite adds."""
    offline = (("HF_HUB_OFFLINE", "1"),) if boot.offline else ()
    frozen = (("SPARK_NO_COMPILE", "1"),) if boot.no_compile else ()
    spec = container.Spec(
        boot.control or preset,
        run.image,
        gpu=run.gpu,
        port=port,
        hub=run.hub,
        key_file=run.key_file.resolve() if run.key_file else None,
        key_group=run.key_group,
        # --verbose: the engine's own log goes to the container's, where the checks read it.
        arguments=("--verbose", "--no-profile", *run.arguments),
        environment=(*run.environment, *offline, *frozen),
        network="none" if boot.offline else run.network,
    )
    found = container.sdk_options(spec)
    found["name"] = f"{spec.name}-smoke-{port}"  # beside a server of the same preset
    found["labels"] = {**found["labels"], LABEL: preset}
    for mount in run.mounts:
        host, _, inside = mount.partition(":")
        found["volumes"][host] = {"bind": inside, "mode": "ro"}
    return found


class DockerTarget:
    """`start` replaces the container, so each boot has a log of its own; the cache volume stays."""

    kind = "docker"
    owns = True
    has_log = True
    supervised = True

    def __init__(self, preset: str, run: Run, *, client: Any = None, api_key: str | None = None) -> None:
        self.preset, self.run, self.api_key = preset, run, api_key
        self.client = client or _connect()
        self.container: Any = None
        self.tunnel: Tunnel | None = None
        self.port = container.PORT if run.network == "host" else free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, boot: Boot) -> None:
        """An offline boot has no network at all; its port is reached through `docker exec`."""
        import docker.errors

        self.stop()
        try:
            self.container = self.client.containers.run(**options(self.preset, self.run, self.port, boot))
        except docker.errors.ImageNotFound as e:
            todo = "build it, or name another with --image"
            raise SmokeError(f"there is no image {self.run.image}", todo, CONFIG) from e
        except docker.errors.APIError as e:
            why = str(e.explanation or e)
            todo = (
                "install the NVIDIA container toolkit, or pass --no-gpu"
                if "capabilities" in why
                else "mend that"
            )
            raise SmokeError(f"docker did not start {self.run.image}: {why}", todo, ENGINE) from e
        if boot.offline:
            self.tunnel = Tunnel(self.container, self.port, container.PORT)

    def life(self) -> Life:
        if self.container is None:
            return Life(alive=False)
        import docker.errors

        try:
            self.container.reload()
        except docker.errors.NotFound:
            return Life(alive=False)
        except docker.errors.APIError:
            return Life(alive=None)
        state = self.container.attrs.get("State", {})
        running = state.get("Status") in ("running", "created", "restarting")
        ready = self.log().count("The server is fired up and ready to roll!")
        restarts = int(self.container.attrs.get("RestartCount") or 0) + max(0, ready - 1)
        return Life(running, None if running else state.get("ExitCode"), restarts, _health(state))

    def log(self) -> str:
        if self.container is None:
            return ""
        with contextlib.suppress(Exception):
            return str(self.container.logs().decode(errors="replace"))
        return ""

    def stop(self) -> None:
        if self.tunnel is not None:
            self.tunnel.close()
            self.tunnel = None
        if self.container is not None:
            with contextlib.suppress(Exception):
                self.container.stop(timeout=container.STOP_GRACE_S)
            with contextlib.suppress(Exception):
                self.container.remove(force=True, v=True)
            self.container = None

    def cut(self) -> None:
        if self.container is not None:
            with contextlib.suppress(Exception):
                self.container.kill()

    def kill_child(self) -> None:
        """Kill the scheduler inside; the image has Python but no pkill."""
        code = (
            "import os, psutil\n"
            "words = lambda p: (p.info['name'] or '') + ' ' + ' '.join((p.info['cmdline'] or [])[:1])\n"
            "found = [p for p in psutil.process_iter(['name', 'cmdline'])"
            " if 'scheduler' in words(p) and p.pid != os.getpid()]\n"
            "[p.kill() for p in found]\n"
            "raise SystemExit(0 if found else 3)"
        )
        result = self.container.exec_run(["python", "-c", code])
        if result.exit_code:
            raise NotRun(f"no scheduler process found in the container (exit {result.exit_code})")

    def kernels(self) -> dict[str, float] | None:
        result = self.container.exec_run(["sh", "-c", _FIND])
        if result.exit_code:
            return None
        lines = result.output.decode(errors="replace").splitlines()
        return {p: float(t) for t, _, p in (ln.partition(" ") for ln in lines) if p}

    def network(self) -> str | None:
        """`lo only; Network is unreachable` where there is none."""
        result = self.container.exec_run(["python", "-c", PROBE])
        return None if result.exit_code else result.output.decode(errors="replace").strip()

    def identity(self) -> Identity:
        import docker.errors

        try:
            image = (
                self.container.image if self.container is not None else self.client.images.get(self.run.image)
            )
        except docker.errors.DockerException:
            return Identity(self.run.image, command=(self.run.image, self.preset))
        digests = image.attrs.get("RepoDigests") or []
        digest = digests[0].partition("@")[2] if digests else image.id
        return Identity(self.run.image, digest, dict(image.labels or {}), (self.run.image, self.preset))

    def memory_available(self) -> int | None:
        return read_meminfo()

    def memory_used(self) -> int | None:
        """The container's memory without the file cache the kernel would give back, by Docker's own sum."""
        with contextlib.suppress(Exception):
            said = self.container.stats(stream=False)["memory_stats"]
            return int(said["usage"]) - int(said.get("stats", {}).get("inactive_file", 0))
        return None

    def tidy(self, *, keep: bool) -> str | None:
        del keep
        return None  # containers are removed at each start and at the end; the cache volume is meant to stay

    def host_path(self, path: str) -> str:
        """Where a file of the container lies outside, through the mounts."""
        for mount in self.run.mounts:
            host, _, inside = mount.partition(":")
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return host + path[len(inside) :]
        return path


def _health(state: dict[str, Any]) -> str | None:
    """The keeper's word from the HEALTHCHECK's output (`ready for 3 s`, ...), else Docker's own."""
    health = state.get("Health")
    if not health:
        return None
    for entry in reversed(health.get("Log") or []):
        words = str(entry.get("Output", "")).strip()
        with contextlib.suppress(ValueError):
            words = str(json.loads(words).get("state", ""))
        for word in ("tripped", "wedged", "failed", "loading", "ready"):
            if words.startswith(word):
                return word
    return {"starting": "loading", "healthy": "ready", "unhealthy": "wedged"}.get(str(health.get("Status")))


def _connect() -> Any:
    import docker.errors

    import docker

    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as e:
        raise SmokeError(
            f"no Docker engine answers ({type(e).__name__})",
            "start Docker, or use --target process or url",
            CONFIG,
        ) from e
    return client
