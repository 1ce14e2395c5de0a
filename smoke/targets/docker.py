"""A container of our image, owned through the Docker SDK: `docker run IMAGE PRESET`, published on loopback."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from smoke.errors import CONFIG, ENGINE, SmokeError
from smoke.targets.base import Boot, Identity, NotRun, read_meminfo
from smoke.wait import Life

PORT = "8000/tcp"  # inside the container
CACHE = "sparkserve-cache"  # the one volume: compiled kernels, tactics, hub cache
LABEL = "io.sparkserve.smoke"
_FIND = r"find /cache -name '*.so' -printf '%T@ %p\n' -o -name '*.cubin' -printf '%T@ %p\n'"


class DockerTarget:
    """Created stopped; `start` replaces the container, so each boot has a log of its own."""

    kind = "docker"
    owns = True
    has_log = True
    supervised = True

    def __init__(
        self,
        preset: str,
        image: str,
        *,
        client: Any = None,
        gpus: bool = True,
        api_key: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.preset, self.image, self.gpus, self.api_key = preset, image, gpus, api_key
        self.environment = environment or {}
        self.client = client or _connect()
        self.container: Any = None
        self.url = "http://127.0.0.1:0"

    def start(self, boot: Boot) -> None:
        import docker.errors
        import docker.types

        self.stop()
        options: dict[str, Any] = {
            "detach": True,
            "ports": {PORT: ("127.0.0.1", None)},
            "volumes": {CACHE: {"bind": "/cache", "mode": "rw"}},
            "read_only": True,
            "tmpfs": {"/tmp": "", "/run": ""},
            "labels": {LABEL: self.preset},
            "environment": self.environment | ({"HF_HUB_OFFLINE": "1"} if boot.offline else {}),
        }
        if self.gpus:
            options["device_requests"] = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
        command = [boot.control or self.preset]
        try:
            self.container = self.client.containers.run(self.image, command, **options)
        except docker.errors.ImageNotFound as e:
            raise SmokeError(
                f"there is no image {self.image}", "build it (make image) or pass --image", CONFIG
            ) from e
        except docker.errors.APIError as e:
            why = str(e.explanation or e)
            todo = (
                "install the NVIDIA container toolkit"
                if "capabilities" in why
                else "docker's answer says why"
            )
            raise SmokeError(f"docker did not start {self.image}: {why}", todo, ENGINE) from e
        # No network in an offline boot would close the published port too; the engine is told instead, and the
        # image's own test cuts the network for real.
        self._find_port()

    def _find_port(self) -> None:
        with contextlib.suppress(Exception):
            self.container.reload()
        bound = (self.container.attrs.get("NetworkSettings", {}).get("Ports") or {}).get(PORT)
        if bound:
            self.url = f"http://127.0.0.1:{bound[0]['HostPort']}"

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
        if self.container is not None:
            with contextlib.suppress(Exception):
                self.container.stop(timeout=60)
            with contextlib.suppress(Exception):
                self.container.remove(force=True)
            self.container = None

    def kill_child(self) -> None:
        """Kill the scheduler inside; the image has Python but no pkill."""
        code = (
            "import psutil;"
            "p=[x for x in psutil.process_iter(['name','cmdline']) "
            "if 'scheduler' in ' '.join([x.info['name'] or '', *(x.info['cmdline'] or [])])];"
            "[x.kill() for x in p]; raise SystemExit(0 if p else 3)"
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

    def identity(self) -> Identity:
        image = self.container.image if self.container is not None else self.client.images.get(self.image)
        digests = image.attrs.get("RepoDigests") or []
        digest = digests[0].partition("@")[2] if digests else image.id
        return Identity(self.image, digest, dict(image.labels or {}), (self.image, self.preset))

    def memory_available(self) -> int | None:
        return read_meminfo()


def _health(state: dict[str, Any]) -> str | None:
    """The guard's word from the HEALTHCHECK's output (ready | loading | wedged | tripped), else Docker's own."""
    health = state.get("Health")
    if not health:
        return None
    for entry in reversed(health.get("Log") or []):
        words = str(entry.get("Output", "")).strip()
        with contextlib.suppress(ValueError):
            words = str(json.loads(words).get("state", ""))
        for word in ("tripped", "wedged", "loading", "ready"):
            if word in words:
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
