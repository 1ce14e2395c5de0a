"""A preset as a container: the SDK options, the docker line, the compose file and the unit say the same."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launch.cli_container import key_group
from launch.container import UID, Spec, compose, docker_argv, sdk_options, systemd
from launch.errors import ConfigError

GPU = Spec(
    "qwen3.8-27b-nvfp4-dflash2",
    "registry.example/sparkserve@sha256:" + "0" * 64,
    hub=Path("/home/u/hf"),
    key_file=Path("/home/u/key"),
    key_group=1000,
    arguments=("--machine", "gb10-128"),
    environment=(("HF_HUB_OFFLINE", "1"), ("ODD", 'a "b" $c %d')),
)


def test_no_privilege_and_loopback_by_default():
    o = sdk_options(GPU)
    assert (o["read_only"], o["cap_drop"], o["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    assert o["ports"] == {"30000/tcp": ("127.0.0.1", 30000)}
    assert "privileged" not in o
    assert "restart_policy" not in o
    assert o["shm_size"] <= 1 << 30


def test_metrics_are_published_only_when_asked_and_where_the_server_is():
    spec = replace(GPU, metrics_port=30999)
    assert sdk_options(spec)["ports"] == {
        "30000/tcp": ("127.0.0.1", 30000),
        "30001/tcp": ("127.0.0.1", 30999),
    }
    assert "127.0.0.1:30999:30001" in docker_argv(spec)
    assert '- "127.0.0.1:30999:30001"' in compose(spec)
    assert "30001" not in " ".join(docker_argv(GPU))


def test_hub_and_key_are_read_only_and_the_key_is_never_in_argv():
    o = sdk_options(GPU)
    assert o["volumes"]["/home/u/hf"] == {"bind": "/models", "mode": "ro"}
    assert o["volumes"]["/home/u/key"]["mode"] == "ro"
    assert o["command"][-2:] == ["--api-key-file", "/run/secrets/api-key"]


def test_key_is_read_through_its_group_or_owner_or_refused(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-x")
    here = os.geteuid()
    if here:
        pytest.skip("changing owners needs root")
    os.chown(key, 1000, 1234)
    key.chmod(0o640)
    assert key_group(key) == 1234
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="chmod 640"):
        key_group(key)
    os.chown(key, 0, 0)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="10001"):  # the container is not let into root's group
        key_group(key)
    os.chown(key, UID, 0)
    key.chmod(0o400)
    assert key_group(key) is None
    assert sdk_options(GPU)["group_add"] == ["1000"]
    assert "group_add" not in sdk_options(Spec("p", "i"))


def test_docker_line_says_what_the_sdk_says():
    argv, o = docker_argv(GPU), sdk_options(GPU)
    assert argv[argv.index(GPU.image) + 1 :] == o["command"]
    assert {v for f, v in itertools.pairwise(argv) if f == "--volume"} == {
        f"{s}:{m['bind']}:{m['mode']}" for s, m in o["volumes"].items()
    }
    assert "--gpus" in argv
    assert argv[argv.index("--group-add") + 1] == o["group_add"][0]
    assert argv[argv.index("--publish") + 1] == "127.0.0.1:30000:30000"
    assert "--gpus" not in docker_argv(Spec("p", "i", gpu=False))


def test_compose_file_says_what_the_sdk_says():
    service = yaml.safe_load(compose(GPU))["services"]["server"]
    o = sdk_options(GPU)
    assert service["command"] == o["command"]
    assert service["environment"] == o["environment"]
    assert service["ports"] == ["127.0.0.1:30000:30000"]
    assert service["restart"] == "no"
    assert service["group_add"] == o["group_add"]
    assert service["cap_drop"] == ["ALL"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


@pytest.mark.parametrize("spec", [GPU, replace(GPU, gpu=False)], ids=["gpu", "cpu"])
def test_compose_accepts_it(tmp_path, spec):
    """Compose itself reads the file: Docker's plug-in, or Debian's docker-compose."""
    client = _compose()
    if client is None:
        assert not os.environ.get("SPARKSERVE_REQUIRE_COMPOSE"), (
            "no `docker compose` and no docker-compose here"
        )
        pytest.skip("no `docker compose` here")
    file = tmp_path / "compose.yaml"
    file.write_text(compose(spec))
    done = subprocess.run([*client, "-f", str(file), "config"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]["server"]
    assert read["read_only"] is True
    assert read["cap_drop"] == ["ALL"]
    assert read["command"] == sdk_options(spec)["command"]
    file.write_text(compose(spec).replace("read_only: true", "read_only: [true]"))
    assert subprocess.run([*client, "-f", str(file), "config"], capture_output=True, check=False).returncode


def _compose() -> list[str] | None:
    for client in (["docker", "compose"], ["/usr/local/bin/docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(client[0])
            and not subprocess.run([*client, "version"], capture_output=True, check=False).returncode
        ):
            return client
    return None


def test_unit_restarts_crashes_but_not_75_and_78():
    unit = systemd(GPU)
    assert "RestartPreventExitStatus=75 78" in unit
    assert "--detach" not in unit
    assert '"ODD=a \\"b\\" $$c %%d"' in unit


def test_systemd_accepts_it(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    file = tmp_path / "sparkserve.service"
    file.write_text(systemd(GPU).replace("/usr/bin/docker", "/bin/true"))
    done = subprocess.run(
        [verify, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    complaints = [s for s in done.stderr.splitlines() if "sparkserve.service" in s and "not found" not in s]
    assert not complaints


def test_smoke_target_gives_the_image_what_run_gives_it():
    from smoke.targets import docker as target
    from smoke.targets.base import Boot

    ours = sdk_options(Spec("p", "i", port=30123, hub=Path("/hf"), key_file=Path("/k")))
    theirs = target.options("p", target.Run("i", hub=Path("/hf"), key_file=Path("/k")), 30123, Boot())
    same = (
        "read_only",
        "cap_drop",
        "security_opt",
        "tmpfs",
        "shm_size",
        "pids_limit",
        "volumes",
        "ports",
        "device_requests",
    )
    assert {k: theirs[k] for k in same} == {k: ours[k] for k in same}
    host = target.options("p", target.Run("i", network="host"), 30000, Boot())
    assert host["network_mode"] == sdk_options(Spec("p", "i", network="host"))["network_mode"]
