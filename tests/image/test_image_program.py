"""`docker/image.py` without a Docker engine: which CLI builds, what is pinned, how two builds compare."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image():
    spec = importlib.util.spec_from_file_location("docker_image", ROOT / "docker" / "image.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["docker_image"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cli(tmp_path, monkeypatch, image):
    """cli(script) puts a `docker` with that shell script first, and the only one, on PATH."""

    def make(script: str) -> str:
        path = tmp_path / "docker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(image, "CLIENTS", ("docker",))
        return str(path)

    return make


def test_buildx_is_preferred(image, cli):
    docker = cli('[ "$1" = buildx ] && exit 0; exit 1')
    argv, env = image.client()
    assert argv == [docker, "buildx", "build", "--load"]
    assert "DOCKER_BUILDKIT" not in env or env["DOCKER_BUILDKIT"] == "1"


def test_cli_with_buildkit_of_its_own_is_used(image, cli):
    docker = cli(
        '[ "$1" = build ] && [ "$DOCKER_BUILDKIT" = 1 ] && { echo "  --secret stringArray"; exit 0; }; exit 1'
    )
    argv, env = image.client()
    assert (argv, env["DOCKER_BUILDKIT"]) == ([docker, "build"], "1")


@pytest.mark.parametrize("script", ["exit 1", "[ $1 = buildx ] && exit 1; echo no such option"])
def test_cli_that_cannot_buildkit_is_69(image, cli, script):
    cli(script)
    with pytest.raises(image.ImageError) as e:
        image.client()
    assert e.value.code == 69


def test_secrets_come_from_the_environment_as_files(image, monkeypatch):
    for name in ("CA", "PIP", "UV", "APT"):
        monkeypatch.delenv(f"SPARK_BUILD_{name}", raising=False)
    assert image.secrets() == []
    monkeypatch.setenv("SPARK_BUILD_UV", "/x/uv.toml")
    assert image.secrets() == ["--secret", "id=uvconf,src=/x/uv.toml"]


def test_base_is_pinned_by_digest(image, cli):
    cli('[ "$1" = image ] && echo "debian@sha256:aa other@sha256:bb"')
    assert image.pinned("debian:trixie-slim") == "debian@sha256:aa"
    assert image.pinned("x@sha256:cc") == "x@sha256:cc"
    assert image.digest("x@sha256:cc") == "sha256:cc"
    cli('[ "$1" = image ] && [ "$4" = "{{.Id}}" ] && echo sha256:dd; exit 0')
    assert image.pinned("local:base") == "local:base"
    assert image.digest("local:base") == "sha256:dd"


def report(size, **layers):
    return {"bytes": size, "layers": [{"made_by": k, "bytes": v} for k, v in layers.items()]}


def test_compare_names_only_layers_that_moved(image):
    old = report(8_000_000_000, base=100_000_000, deps=7_000_000_000, gone=5_000_000)
    new = report(7_900_000_000, base=100_000_000, deps=6_900_000_000, fresh=1_000_000)
    lines = image.compare(new, old)
    assert lines[0] == "total 7.90 GB (before 8.00 GB)"
    assert [s.split() for s in lines[1:]] == [
        ["6900.0", "MB", "(was", "7000.0", "MB)", "deps"],
        ["1.0", "MB", "(new)", "fresh"],
        ["gone", "(5.0", "MB)", "gone"],
    ]
    assert image.compare(old, old) == ["total 8.00 GB (before 8.00 GB)"]


def test_report_reads_two_files_and_a_broken_one_is_78(image, tmp_path, capsys):
    one = tmp_path / "one.json"
    one.write_text(json.dumps(report(1_000_000_000, base=1)))
    assert image.main(["report", str(one), str(one)]) == 0
    assert "total 1.00 GB" in capsys.readouterr().out
    (tmp_path / "two.json").write_text("{")
    assert image.main(["report", str(one), str(tmp_path / "two.json")]) == 78
    assert "image: " in capsys.readouterr().err


def test_failed_build_is_70_and_image_over_the_limit_is_78(image, cli, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(image, "ROOT", tmp_path)
    cli('[ "$1" = buildx ] && [ "$2" = version ] && exit 0; [ "$1" = buildx ] && exit 9; exit 0')
    assert image.main(["build", "--base", "b@sha256:aa"]) == 70
    cli("exit 0")
    big = {"tag": "t", "bytes": image.LIMIT + 1, "seconds": 1, "architecture": "amd64", "layers": []}
    monkeypatch.setattr(image, "describe", lambda *_a: big)
    assert image.main(["build", "--no-compressed", "--base", "b@sha256:aa"]) == 78
    assert "more than 8.0 GB" in capsys.readouterr().err
    assert json.loads((tmp_path / "build" / "image-gpu-amd64.json").read_text()) == big


@pytest.mark.parametrize(
    ("argv", "zstd", "measured"),
    [
        ([], True, True),
        ([], False, False),
        (["--target", "cpu"], True, False),
        (["--target", "cpu", "--compressed"], True, True),
        (["--no-compressed"], True, False),
    ],
)
def test_a_published_image_is_packed_to_hold_it_to_its_limit(
    image, cli, tmp_path, monkeypatch, capsys, argv, zstd, measured
):
    monkeypatch.setattr(image, "ROOT", tmp_path)
    cli("exit 0")
    monkeypatch.setattr(image, "describe", lambda *_a: dict(small))
    monkeypatch.setattr(image, "compressed", lambda _tag: image.PACKED_LIMIT + 1)
    which = image.shutil.which
    monkeypatch.setattr(
        image.shutil, "which", lambda name: (zstd or None) and "/zstd" if name == "zstd" else which(name)
    )
    small = {"tag": "t", "bytes": 1, "seconds": 1, "architecture": "amd64", "layers": []}
    assert image.main(["build", "--base", "b@sha256:aa", *argv]) == (78 if measured else 0)
    assert ("packed, more than 3.6 GB" in capsys.readouterr().err) is measured


# ---- Dockerfile and bake file --------------------------------------------------------------------------------------


def test_dockerfile_stays_within_the_oldest_buildkit():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    code = "\n".join(s for s in text.splitlines() if not s.lstrip().startswith("#"))
    assert "--link" not in code
    assert "<<" not in code
    assert not text.startswith("# syntax")


def test_bake_file_builds_both_architectures_from_stages_and_arguments_there_are():
    file = ROOT / "docker" / "docker-bake.hcl"
    docker = shutil.which("docker")
    if (
        docker
        and subprocess.run([docker, "buildx", "version"], capture_output=True, check=False).returncode == 0
    ):
        argv = [docker, "buildx", "bake", "-f", str(file), "--print", "gpu", "cpu"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
        targets = json.loads(done.stdout)["target"]
        assert targets["gpu"]["platforms"] == ["linux/amd64", "linux/arm64"]
        assert targets["gpu"]["args"]["TARGET"] == "gpu"
    text = re.sub(r"#.*", "", file.read_text())
    for one, other in ("{}", "[]"):
        assert text.count(one) == text.count(other)
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    arguments = set(re.findall(r"^\s+([A-Z_]+)\s*=", text, re.M)) | set(re.findall(r"\{ ([A-Z_]+) =", text))
    assert arguments >= {"BASE_IMAGE", "TARGET", "VERSION", "REVISION"}
    assert arguments <= set(re.findall(r"^ARG ([A-Z_]+)", dockerfile, re.M))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.M))
    assert set(re.findall(r'TARGET = "(\w+)"', text)) == {"gpu", "cpu"} <= stages
    assert 'platforms = ["linux/amd64", "linux/arm64"]' in text
    named = set(re.findall(r'^target "(\w+)"', text, re.M))
    inherited = set(re.findall(r'inherits\s*=\s*\["(\w+)"\]', text))
    assert inherited <= named
    assert (ROOT / re.search(r'dockerfile = "([^"]+)"', text)[1]).is_file()


def test_both_limits_are_enforced_and_named(image):
    assert image.too_large({"bytes": image.LIMIT, "zstd3_bytes": image.PACKED_LIMIT}) == []
    assert image.too_large({"bytes": 1}) == []
    big = image.too_large({"bytes": 8_100_000_000, "zstd3_bytes": 3_700_000_000})
    assert big == [
        "8.10 GB unpacked, more than 8.0 GB: see its layers",
        "3.70 GB packed, more than 3.6 GB: see its layers",
    ]


def test_report_takes_the_last_build_and_the_last_release(image, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(image, "ROOT", tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "evidence").mkdir()
    assert image.main(["report"]) == 78
    assert "make image" in capsys.readouterr().err
    layer = {"made_by": "RUN wheels", "bytes": 7_000_000_000}
    new = {"architecture": "arm64", "bytes": 8_500_000_000, "layers": [layer]}
    (tmp_path / "build" / "image-gpu-arm64.json").write_text(json.dumps(new))
    assert image.main(["report"]) == 78
    assert "no image-arm64-" in capsys.readouterr().err
    for day, size in (("2026-11-30", 1), ("2026-12-01", 6_900_000_000)):
        old = {"architecture": "arm64", "bytes": size, "layers": [{**layer, "bytes": size}]}
        (tmp_path / "evidence" / f"image-arm64-{day}.json").write_text(json.dumps(old))
    assert image.main(["report"]) == 78
    said = capsys.readouterr()
    assert "was 6900.0 MB" in said.out
    assert "8.50 GB unpacked" in said.err
