"""The build steps on small trees: prune, toolkit, coherence, overlay, settled times, manifest and SBOM."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

STEPS = Path(__file__).resolve().parents[2] / "docker" / "build"
sys.path.insert(0, str(STEPS))

import common  # noqa: E402
import deps  # noqa: E402
import manifest  # noqa: E402
import overlay  # noqa: E402


def put(path: Path, data: str | bytes = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# ---- deps ----------------------------------------------------------------------------------------------------------


def test_prune_removes_files_folders_and_links_and_counts_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(deps, "SITE", tmp_path)
    put(tmp_path / "a" / "big.so", b"1" * 10)
    put(tmp_path / "a" / "kept.so")
    put(tmp_path / "b" / "deep" / "x", b"1" * 5)
    (tmp_path / "link.so").symlink_to("a/kept.so")
    rules = put(
        tmp_path / "rules.toml",
        '[[prune]]\npaths = ["a/big*", "b", "link.so"]\nwhy = "w"\n[[prune]]\npaths = ["none/here"]\nwhy = "w"\n',
    )
    assert deps.prune(rules) == 15 + len("a/kept.so")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "kept.so", "rules.toml"]


def test_file_that_two_wheels_bring_differently_is_found_until_pruned(tmp_path):
    put(
        tmp_path / "a-1.dist-info" / "RECORD",
        "build_backend.py,sha256=1,9\nshared/__init__.py,sha256=0,0\nmine.py,sha256=7,1\n",
    )
    put(
        tmp_path / "b-1.dist-info" / "RECORD",
        "build_backend.py,sha256=2,8\nshared/__init__.py,sha256=0,0\nb-1.dist-info/RECORD,,\n",
    )
    put(tmp_path / "build_backend.py")
    assert deps.contested(tmp_path) == ["build_backend.py"]
    (tmp_path / "build_backend.py").unlink()
    assert deps.contested(tmp_path) == []


def test_toolkit_gives_the_wheels_the_names_that_linkers_ask_for(tmp_path, monkeypatch):
    monkeypatch.setattr(deps, "SITE", tmp_path)
    lib = tmp_path / "nvidia" / "cu13" / "lib"
    put(lib / "libcudart.so.13")
    put(lib / "libnvrtc.so")
    put(lib / "libnvrtc.so.13")
    deps.toolkit()
    assert (lib.parent / "lib64").readlink() == Path("lib")
    assert (lib / "libcudart.so").readlink() == Path("libcudart.so.13")
    assert not (lib / "libnvrtc.so").is_symlink()
    assert (lib / "stubs" / "libcuda.so").read_bytes()[:4] == b"\x7fELF"
    first = (lib / "stubs" / "libcuda.so").read_bytes()
    deps.toolkit()  # a second time changes nothing
    assert (lib / "stubs" / "libcuda.so").read_bytes() == first


@pytest.mark.parametrize(
    ("release", "header", "complaint"),
    [
        ("13.0", "13000", None),
        ("13.5", "13000", "nvcc is not of CUDA 13.0"),
        ("13.0", "13050", "headers are not of 13.0"),
        ("12.9", "12090", "nvcc is not of CUDA 13.0"),
    ],
)
def test_compiler_of_another_release_fails_the_build(tmp_path, monkeypatch, release, header, complaint):
    monkeypatch.setattr(deps, "SITE", tmp_path)
    home = tmp_path / "nvidia" / "cu13"
    put(
        home / "bin" / "nvcc", f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n"
    )
    (home / "bin" / "nvcc").chmod(0o755)
    put(home / "include" / "cuda_runtime_api.h", f"#define CUDART_VERSION  {header}\n")
    expectation = pytest.raises(SystemExit, match=complaint) if complaint else contextlib.nullcontext()
    with expectation:
        deps.coherent()


def test_driver_stub_says_no_device_for_every_symbol(tmp_path):
    folder = deps.driver_stub(tmp_path / "stub")
    code = (
        "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); p = ctypes.c_void_p(7);"
        "assert c.cuInit(0) == 100 and c.cuMemCreate() == 100;"
        "assert c.cuGetProcAddress_v2(b'cuX', ctypes.byref(p), 0, ctypes.c_ulong(0), None) == 500 and p.value is None"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / "libcuda.so.1")], check=True)


def test_settle_gives_files_folders_and_links_one_time(tmp_path):
    put(tmp_path / "d" / "f")
    (tmp_path / "l").symlink_to("nowhere")
    common.settle(tmp_path)
    found = [tmp_path, *tmp_path.rglob("*")]
    assert len(found) == 4
    assert {int(p.lstat().st_mtime) for p in found} == {common.EPOCH}


# ---- overlay -------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    site = tmp_path / "site-packages"
    put(site / "sglang" / "same.py", "a = 1\n")
    put(site / "sglang" / "srt" / "changed.py", "b = 1\n")
    put(site / "sglang" / "srt" / "gone.py", "c = 1\n")
    put(site / "other" / "mine.py", "d = 1\n")
    info = site / "sglang-0.5.23.dist-info"
    put(info / "METADATA", "Name: sglang\nVersion: 0.5.23\n")
    put(info / "RECORD", "sglang/same.py,,\nsglang/srt/changed.py,,\nsglang/srt/gone.py,,\nother/mine.py,,\n")
    for path in site.rglob("*"):
        os.utime(path, (1000, 1000))
    return site


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "sglang-0.5.23+spark.1-cp313-cp313-x.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("sglang/same.py", "a = 1\n")
        z.writestr("sglang/srt/changed.py", "b = 2\n")
        z.writestr("sglang/srt/new/added.py", "e = 1\n")
        z.writestr("sglang-0.5.23+spark.1.dist-info/METADATA", "Name: sglang\nVersion: 0.5.23+spark.1\n")
        z.writestr("sglang-0.5.23+spark.1.dist-info/RECORD", "")
    return path


def test_overlay_writes_what_differs_and_leaves_the_rest_alone(site, wheel):
    def mark(name):
        s = (site / name).stat()
        return s.st_ino, s.st_mtime_ns, s.st_ctime_ns

    before = {n: mark(n) for n in ("sglang/same.py", "other/mine.py")}
    written = overlay.overlay(wheel, site)
    overlay.settle_written(site, written)
    assert {n for n in written if n.endswith(".py")} == {"sglang/srt/changed.py", "sglang/srt/new/added.py"}
    assert (site / "sglang/srt/changed.py").read_text() == "b = 2\n"
    assert {n: mark(n) for n in before} == before
    assert not (site / "sglang/srt/gone.py").exists()
    assert (site / "other/mine.py").exists()
    assert [p.name for p in site.glob("sglang-*.dist-info")] == ["sglang-0.5.23+spark.1.dist-info"]
    for name in ("sglang/srt/changed.py", "sglang/srt/new", "sglang/srt", "sglang"):
        assert int((site / name).stat().st_mtime) == common.EPOCH


def test_overlay_of_the_same_wheel_again_writes_nothing(site, wheel):
    overlay.overlay(wheel, site)
    assert overlay.overlay(wheel, site) == []


# ---- manifest ------------------------------------------------------------------------------------------------------


def distribution(site: Path, name: str, version: str, *lines: str, file: str | None = None) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    put(
        info / "METADATA",
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]) + "\n",
    )
    if file:
        put(info / "licenses" / file, "text")


@pytest.fixture
def licensed(tmp_path, monkeypatch):
    distribution(
        tmp_path, "expr", "1", "License-Expression: MIT", "Classifier: License :: OSI Approved :: BSD License"
    )
    distribution(tmp_path, "class", "2", "Classifier: License :: OSI Approved :: Apache Software License")
    distribution(tmp_path, "field", "3", "License: NVIDIA Proprietary Software")
    distribution(tmp_path, "silent", "4+cu130", file="LICENSE")
    monkeypatch.setattr(manifest, "SITE", tmp_path)
    return tmp_path


def test_every_distribution_is_listed_with_what_it_says_of_its_licence(licensed):
    found = {d["name"]: d for d in manifest.distributions()}
    assert {n: d["licence"] for n, d in found.items()} == {
        "expr": "MIT",
        "class": "Apache Software License",
        "field": "NVIDIA Proprietary Software",
        "silent": "",
    }
    assert found["silent"]["licence_files"] == ["licenses/LICENSE"]
    inventory = manifest.licences(list(found.values()))
    assert [d["name"] for d in inventory["not stated"]] == ["silent"]
    assert sum(len(v) for v in inventory.values()) == len(found)


def test_sbom_is_cyclonedx_and_depends_on_contents_alone(licensed):
    python = manifest.distributions()
    debian = [{"name": "libc6", "version": "2.41-12+deb13u1", "arch": "amd64"}]
    one, two = manifest.sbom(python, debian), manifest.sbom(python, debian)
    assert one == two
    assert (one["bomFormat"], one["specVersion"]) == ("CycloneDX", "1.6")
    refs = [c["bom-ref"] for c in one["components"]]
    assert len(set(refs)) == len(refs) == 5
    assert "pkg:pypi/silent@4%2Bcu130" in refs
    assert "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64" in refs
    silent = next(c for c in one["components"] if c["name"] == "silent")
    assert "licenses" not in silent
    assert manifest.sbom(python[1:], debian)["serialNumber"] != one["serialNumber"]


def test_engine_that_is_not_whole_stops_the_manifest(monkeypatch):
    bad = SimpleNamespace(returncode=1, stdout="", stderr="P06 is not in place")
    monkeypatch.setattr(manifest.subprocess, "run", lambda *_a, **_k: bad)
    with pytest.raises(SystemExit, match="P06 is not in place"):
        manifest.patch_state()
