"""Findings on a healthy GB10 and on each ill: exactly the ill one changes, and it says what to do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli import app
from launch.doctor import Docker, Evidence, Level, diagnose
from launch.doctor_gather import gather, hub_state, parse_cuda, parse_docker
from launch.host.measure import Process, measure
from launch.host.procfs import Earlyoom, Oomd

MACHINES = Path(__file__).resolve().parents[1] / "host" / "machines"
GIB = 1 << 30
GB10 = measure(MACHINES / "gb10-synthetic")
HOST = replace(
    GB10, earlyoom=None, killers=(), desktop=(), memory=replace(GB10.memory, swap_total=0, swap_free=0)
)
WELL = Evidence(
    host=HOST,
    machine="gb10-128",
    arch="aarch64",
    docker=Docker(True, version="28.0", runtimes=("nvidia", "runc")),
    gpu_names=("NVIDIA GB10",),
    driver="580.95.05",
    cuda=(13, 0),
    disk_free=500 * GIB,
    disk_place="/data",
    clock_off_s=0.4,
)


def host(**changes):
    return replace(WELL, host=replace(HOST, **changes))


def test_healthy_machine_passes_everything():
    found = diagnose(WELL)
    assert [(c.name, c.detail) for c in found if c.level is not Level.PASS] == []
    assert {
        "memory",
        "driver",
        "kernel and driver",
        "GPU users",
        "docker",
        "container toolkit",
        "swap",
        "disk",
    } <= {c.name for c in found}
    assert all(c.mend == "" for c in found)


ILLS = [
    (host(memory=None, problems=("no figures",)), "memory", "FAIL", "no figures"),
    (host(memory=replace(HOST.memory, available=60 * GIB)), "memory", "WARN", "60.0 GiB of 121.7"),
    (replace(WELL, gpu_names=(), driver=None, cuda=None), "driver", "WARN", "only fixtures"),
    (replace(WELL, cuda=(12, 8)), "driver", "FAIL", "needs 13.0"),
    (replace(WELL, cuda=None), "driver", "FAIL", "does not answer"),
    (
        replace(WELL, known_bad=((r"6\.14.*", r"580\..*", "freezes", "a source"),)),
        "kernel and driver",
        "FAIL",
        "freezes",
    ),
    (replace(WELL, gpu_processes=("ollama",)), "GPU users", "WARN", "ollama"),
    (
        replace(WELL, arch="x86_64", host=replace(HOST, cpu_flags=frozenset({"sse2", "avx"}))),
        "CPU",
        "FAIL",
        "avx2",
    ),
    (replace(WELL, docker=Docker(False)), "docker", "WARN", "no docker"),
    (replace(WELL, docker=Docker(True, "permission denied while trying")), "docker", "FAIL", "permission"),
    (replace(WELL, docker=Docker(True, "Cannot connect")), "docker", "FAIL", "Cannot connect"),
    (
        replace(WELL, docker=Docker(True, version="28", runtimes=("runc",))),
        "container toolkit",
        "FAIL",
        "no nvidia runtime",
    ),
    (host(earlyoom=Earlyoom(10.0, None, 10.0)), "earlyoom", "WARN", "kills below 12.2 GiB"),
    (host(killers=(Process(7, "systemd-oomd"),)), "other killers", "WARN", "systemd-oomd"),
    (
        host(killers=(Process(7, "systemd-oomd"),), oomd=Oomd(80.0, 60.0, 20.0)),
        "other killers",
        "WARN",
        "60 % pressure for 20 s",
    ),
    (
        host(memory=replace(HOST.memory, swap_total=8 * GIB, swap_free=8 * GIB)),
        "swap",
        "WARN",
        "stalls as a whole",
    ),
    (
        host(memory=replace(HOST.memory, swap_total=8 * GIB, swap_free=4 * GIB)),
        "swap",
        "WARN",
        "4.0 GiB of 8.0",
    ),
    (host(shm_total=64 << 20, shm_used=60 << 20), "shared memory", "FAIL", "bus error"),
    (host(shm_used=5 * GIB), "shared memory", "WARN", "taken from the model"),
    (host(desktop=(Process(3, "gnome-shell"),)), "desktop", "WARN", "gnome-shell"),
    (host(min_free=3 * GIB), "min_free", "WARN", "min_free_kbytes"),
    (replace(WELL, disk_free=5 * GIB), "disk", "WARN", "5.0 GiB"),
    (replace(WELL, hub="https://h: ConnectError"), "hub", "WARN", "ConnectError"),
    (replace(WELL, hub_asked=False), "hub", "WARN", "not asked"),
    (replace(WELL, clock_off_s=-4000.0), "clock", "FAIL", "4000 s behind"),
]


@pytest.mark.parametrize(("evidence", "name", "level", "word"), ILLS, ids=[f"{i[1]}-{i[3]}" for i in ILLS])
def test_each_ill_is_found_and_nothing_else(evidence, name, level, word):
    bad = [c for c in diagnose(evidence) if c.level is not Level.PASS]
    assert [(c.name, str(c.level)) for c in bad] == [(name, level)]
    assert word in bad[0].detail
    assert bad[0].mend


def test_in_our_container_nothing_is_said_of_the_host_s_docker():
    found = diagnose(replace(WELL, docker=None, gpu_names=()))
    assert not {"docker", "container toolkit"} & {c.name for c in found}
    assert next(c for c in found if c.name == "driver").mend.startswith("docker run --gpus all")


def test_evidence_gathered_beside_a_manifest_leaves_docker_out(tmp_path, monkeypatch):
    manifest = tmp_path / "manifest.json"
    monkeypatch.setenv("SPARKSERVE_MANIFEST", str(manifest))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert gather().docker is not None
    manifest.write_text("{}")
    assert gather().docker is None


def test_earlyoom_below_the_floor_is_well_and_the_mend_is_too():
    assert diagnose(host(earlyoom=Earlyoom(2.0, None, 10.0)))
    warned = next(c for c in diagnose(host(earlyoom=Earlyoom(10.0, None, 10.0))) if c.name == "earlyoom")
    percent = float(warned.mend.split("-m ")[1].split(")")[0])
    mended = next(c for c in diagnose(host(earlyoom=Earlyoom(percent, None, 10.0))) if c.name == "earlyoom")
    assert mended.level is Level.PASS


def test_any_captured_machine_can_be_judged():
    for folder in MACHINES.iterdir():
        found = diagnose(Evidence(host=measure(folder), machine=None, arch="x86_64", docker=Docker(False)))
        assert found


def test_nvidia_smi_header():
    assert parse_cuda("| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0  |") == (13, 0)
    assert parse_cuda("CUDA Version: N/A") is None
    assert parse_cuda("") is None


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (
            (0, '{"ServerVersion": "28.0", "Runtimes": {"nvidia": {}, "runc": {}}}', ""),
            ("", "28.0", ("nvidia", "runc")),
        ),
        (
            (1, '{"ServerErrors": ["permission denied: docker.sock"]}', ""),
            ("permission denied: docker.sock", "", ()),
        ),
        (
            (1, "", "Cannot connect to the Docker daemon\nmore"),
            ("Cannot connect to the Docker daemon", "", ()),
        ),
        ((127, "", ""), ("docker info ended with 127", "", ())),
        ((0, "not json", ""), ("docker info ended with 0", "", ())),
    ],
)
def test_docker_info(answer, want):
    d = parse_docker(*answer)
    assert (d.error, d.version, d.runtimes) == want


def test_cdi_needs_a_spec_of_nvidia(tmp_path):
    answer = json.dumps({"ServerVersion": "28.0", "Runtimes": {}, "CDISpecDirs": [str(tmp_path)]})
    assert not parse_docker(0, answer, "").cdi
    (tmp_path / "nvidia.yaml").write_text("")
    assert parse_docker(0, answer, "").cdi


def test_hub_that_does_not_answer():
    why, ahead = hub_state("http://127.0.0.1:9")
    assert "127.0.0.1:9" in why
    assert ahead is None


def test_command_prints_data_and_fails_on_fail(monkeypatch):
    import launch.doctor_gather as g

    monkeypatch.setattr(g, "gather", lambda: WELL)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    assert {c["level"] for c in json.loads(done.stdout)} == {"PASS"}
    monkeypatch.setattr(g, "gather", lambda: replace(WELL, cuda=(12, 0)))
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1
