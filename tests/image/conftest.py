"""A real Docker engine, the test image built from a debootstrap base, and containers that are always removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.container import Spec, sdk_options

ROOT = Path(__file__).resolve().parents[2]
BASE = "sparkserve-test-base:trixie"
# Another tag keeps two runs on one Docker engine apart.
IMAGE = os.environ.get("SPARKSERVE_TEST_IMAGE") or "sparkserve:test"
MOCK = Path(__file__).parent / "mock"
PRESET = "tiny-w4a4-dflash2"
# .ci/run sets this: there a missing engine is a failure, elsewhere a reason to skip.
REQUIRED = os.environ.get("SPARKSERVE_REQUIRE_DOCKER") == "1"


def unavailable(why: str) -> None:
    pytest.fail(why) if REQUIRED else pytest.skip(why)


@pytest.fixture(scope="session")
def client() -> Any:
    import docker.errors

    import docker

    try:
        c = docker.from_env(timeout=300)
        c.ping()
    except docker.errors.DockerException as e:
        unavailable(f"no Docker engine answers: {str(e)[:120]}")
    return c


def debootstrap(client: Any, work: Path) -> None:
    """Make the base image from Debian's packages: no registry is asked."""
    if os.geteuid() or not shutil.which("debootstrap"):
        unavailable("the base image needs debootstrap and root: apt-get install debootstrap")
    tree = work / "trixie"
    argv = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "trixie", str(tree)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    for deb in (tree / "var/cache/apt/archives").glob("*.deb"):
        deb.unlink()
    packed = work / "base.tar"
    subprocess.run(["tar", "-C", str(tree), "-cf", str(packed), "."], check=True)
    name, tag = BASE.split(":")
    client.api.import_image_from_file(str(packed), repository=name, tag=tag)
    shutil.rmtree(tree)
    packed.unlink()


@pytest.fixture(scope="session")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cpu target, built by the program `make image` runs; layers that did not change come from the cache."""
    import docker.errors

    try:
        client.images.get(BASE)
    except docker.errors.ImageNotFound:
        debootstrap(client, tmp_path_factory.mktemp("base"))
    env = {**os.environ}
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.exists():
        env.setdefault("SPARK_BUILD_CA", str(bundle))
    argv = [
        sys.executable,
        str(ROOT / "docker" / "image.py"),
        "build",
        "--target",
        "cpu",
        "--base",
        BASE,
        "--tag",
        IMAGE,
    ]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return IMAGE


class Box:
    """One running container, with what the tests ask of it."""

    def __init__(self, container: Any) -> None:
        self.c = container

    def logs(self) -> str:
        return self.c.logs().decode(errors="replace")

    def python(self, code: str) -> str:
        done = self.c.exec_run(["/opt/venv/bin/python", "-c", code])
        return done.output.decode(errors="replace").strip()

    def health(self) -> str:
        return (
            self.c.exec_run(["python3", "/opt/sparkserve/rt/health.py"])
            .output.decode(errors="replace")
            .strip()
        )

    def read(self, path: str) -> str | None:
        """A file inside, none of which is ever empty; None when it is not there."""
        for _ in range(5):
            done = self.c.exec_run(["cat", path])
            if done.exit_code:
                return None
            if done.output:  # a busy Docker 20.10 now and then loses what a short exec prints
                return str(done.output.decode())
        raise AssertionError(f"{path} reads empty")

    def phase(self) -> str:
        """What the guard last wrote; cheaper to ask often than the health check, which starts a Python each time."""
        text = self.read("/run/spark/state.json")
        return str(json.loads(text)["phase"]) if text else "none"

    def pid(self) -> int:
        text = self.read("/run/spark/server.pid")
        assert text, "no server.pid"
        return int(text)

    def until(self, what: Callable[[], bool], why: str, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if what():
                return
            self.c.reload()
            assert self.c.status in ("running", "created"), (
                f"{why}: container {self.c.status}\n{self.logs()[-3000:]}"
            )
            time.sleep(0.5)
        pytest.fail(f"{why}: not within {seconds:.0f} s; health: {self.health()}\n{self.logs()[-3000:]}")

    def ready(self, seconds: float = 90) -> Box:
        self.until(lambda: self.phase() == "ready", "ready", seconds)
        return self

    def exit_code(self, seconds: float = 120) -> int:
        return int(self.c.wait(timeout=seconds)["StatusCode"])


@pytest.fixture
def start(client: Any, image: str) -> Iterator[Callable[..., Box]]:
    """start(mock="serve", env={…}, **changes) runs a preset as `sparkserve run` would, with the mock engine inside."""
    started: list[Any] = []
    volumes: list[str] = []

    def go(
        *arguments: str,
        mock: str | None = "serve",
        env: dict[str, str] | None = None,
        preset: str = PRESET,
        key_file: Path | None = None,
        hub: Path | None = None,
        network: str = "none",
        **changes: Any,
    ) -> Box:
        environment = dict(env or {})
        if mock:
            environment |= {"MOCK": mock, "PYTHONPATH": "/mock:/opt/sparkserve"}
        spec = Spec(
            preset, image, gpu=False, network=network, arguments=arguments, key_file=key_file, hub=hub,
            environment=tuple(environment.items()),
        )  # fmt: skip
        options = sdk_options(spec)
        unique = uuid.uuid4().hex[:8]
        options["name"] = f"spark-test-{unique}"
        cache = f"spark-test-cache-{unique}"
        volumes.append(cache)
        found = options["volumes"]
        found[cache] = found.pop("sparkserve-cache")
        if mock:
            found[str(MOCK)] = {"bind": "/mock", "mode": "ro"}
        options.update(changes)
        container = client.containers.run(**options)
        started.append(container)
        return Box(container)

    yield go
    for container in started:
        container.remove(force=True, v=True)
    for name in volumes:
        try:
            client.volumes.get(name).remove(force=True)
        except Exception as e:  # a volume that a test replaced never existed
            assert "no such volume" in str(e).lower()  # noqa: PT017
