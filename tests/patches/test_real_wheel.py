"""The real released wheel: patched, reproducible, installable by pip and by uv, verified where it lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patches import apply, basewheel, cli, series, verify, wheelfile
from patches.errors import Unavailable

pytestmark = pytest.mark.engine

SERIES = series.load()


@pytest.fixture(scope="module")
def base() -> Path:
    try:
        return basewheel.base_wheel(SERIES)
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def patched(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return apply.build_wheel(SERIES, base, tmp_path_factory.mktemp("patched"))[0]


def test_two_runs_are_byte_identical(base: Path, patched: Path, tmp_path: Path) -> None:
    code = "import sys; from patches.cli import main; sys.exit(main(sys.argv[1:]))"
    # Another process with another hash seed: no set or dict order may leak into the wheel.
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(series.HERE.parent)}
    subprocess.run([sys.executable, "-c", code, "apply", base, "-o", tmp_path], env=env, check=True)
    assert wheelfile.sha256_file(tmp_path / patched.name) == wheelfile.sha256_file(patched)


def test_it_is_whole_and_only_the_series_differs(base: Path, patched: Path) -> None:
    assert verify.verify(SERIES, verify.open_target(str(patched))).whole
    old, new = wheelfile.read(base), wheelfile.read(patched)
    changed = {n for n in old.keys() | new.keys() if ".dist-info/" not in n and old.get(n) != new.get(n)}
    assert changed == {path for p in SERIES.carried for path in p.files} | {"sglang/_version.py"}
    stripped = {n.split("/", 1)[1] for n in new if ".dist-info/" in n} - {wheelfile.MANIFEST}
    assert stripped == {n.split("/", 1)[1] for n in old if ".dist-info/" in n}


def test_every_patched_file_still_compiles(patched: Path) -> None:
    members = wheelfile.read(patched)
    for patch in SERIES.carried:
        for path in patch.files:
            if path in members:
                compile(members[path].data, path, "exec")


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_it_installs_and_tells_its_version(patched: Path, tmp_path: Path, tool: str) -> None:
    if tool == "uv":
        found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        command = [str(found), "pip", "install", "--python", sys.executable]
        missing = found is None
    else:
        try:
            command, missing = [*basewheel.pip(), "install", "--only-binary=:all:"], False
        except Unavailable:
            command, missing = [], True
        command += ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
    if missing:
        pytest.skip(f"no {tool} here")
    site = tmp_path / "site"
    subprocess.run([*command, "--quiet", "--no-deps", "--target", str(site), str(patched)], check=True)
    assert verify.verify(SERIES, verify.open_target(str(site))).whole
    code = "import importlib.metadata as m, sglang.version as v; print(v.__version__, m.version('sglang'))"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [SERIES.spark_version] * 2


def test_a_flipped_byte_is_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / base.name
    data = bytearray(base.read_bytes())
    data[len(data) // 2] ^= 0x10
    bad.write_bytes(data)
    assert cli.main(["apply", str(bad), "-o", str(tmp_path / "out")]) == 78
    err = capsys.readouterr().err
    assert SERIES.wheels[base.name] in err
    assert wheelfile.sha256_file(bad) in err
    assert not (tmp_path / "out").exists()


def test_hashes_in_series_toml_are_those_of_the_wheel(base: Path) -> None:
    assert cli.main(["refresh", "--check", "--wheel", str(base)]) == 0


def test_python_files_of_every_pinned_wheel_at_hand_are_the_same(base: Path) -> None:
    """One series of hashes serves all interpreters and architectures."""

    def sources(path: Path) -> dict[str, str]:
        return {n: wheelfile.sha256(m.data) for n, m in wheelfile.read(path).items() if n.endswith(".py")}

    want = sources(base)
    for name, sha in SERIES.wheels.items():
        other = basewheel.WHEELS / name
        if other.is_file() and wheelfile.sha256_file(other) == sha:
            assert sources(other) == want
