"""The environment is built from locks, and a half-built one is repaired, not trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import environment as env

LOCK = "alpha==1.0 \\\n    --hash=sha256:00\nBeta.Two[x]==2.1 ; python_version > '3'\n# gamma==3\n"
SERIES = '[base]\nversion = "0.5.23"\n[base.wheels]\n'


@pytest.fixture
def layout(tmp_path: Path) -> env.Layout:
    """A repository with a lock and a whole, if hollow, environment."""
    root = tmp_path / "repo"
    lay = env.Layout(root, root / ".venv")
    for d in (root / "patches", lay.lock.parent, lay.site, lay.venv / "bin"):
        d.mkdir(parents=True)
    lay.lock.write_text(LOCK)
    (root / "patches" / "series.toml").write_text(SERIES)
    (root / "patches" / "__init__.py").touch()
    (root / "patches" / "__main__.py").write_text("raise SystemExit(0)\n")
    for name in ("alpha-1.0", "beta_two-2.1"):
        (lay.site / f"{name}.dist-info").mkdir()
        (lay.site / f"{name}.dist-info" / "RECORD").touch()
    lay.python.symlink_to(sys.executable)
    (lay.venv / "bin" / "sparkserve").touch()
    lay.stamp.write_text(json.dumps({"inputs": env.inputs_digest(lay)}))
    return lay


def test_lock_names_are_normalised_and_comments_ignored():
    assert env.locked_names(LOCK) == {"alpha", "beta_two"}


def test_the_development_locks_pin_the_engine_but_not_sglang_itself():
    root = Path(env.__file__).parents[1]
    for lock in (root / "docker" / "locks").glob("dev-*.txt"):
        names = env.locked_names(lock.read_text())
        assert {"torch", "flashinfer_python", "nvidia_modelopt", "pytest"} <= names, lock.name
        assert "sglang" not in names, lock.name


def test_whole_environment_is_trusted(layout):
    assert env.whole(layout) is None


def test_no_stamp_is_half_built(layout):
    layout.stamp.unlink()
    assert "did not finish" in (env.whole(layout) or "")


def test_changed_lock_or_patch_is_noticed(layout):
    layout.lock.write_text(LOCK + "delta==1\n")
    assert "changed" in (env.whole(layout) or "")
    layout.lock.write_text(LOCK)
    assert env.whole(layout) is None
    (layout.root / "patches" / "0001-x.patch").write_text("new\n")
    assert "changed" in (env.whole(layout) or "")


def test_package_without_record_is_noticed(layout):
    (layout.site / "beta_two-2.1.dist-info" / "RECORD").unlink()
    assert "beta_two" in (env.whole(layout) or "")


def test_damaged_stamp_is_noticed(layout):
    layout.stamp.write_text("{")
    assert "stamp" in (env.whole(layout) or "")


def test_changed_engine_is_noticed(layout):
    (layout.root / "patches" / "__main__.py").write_text("raise SystemExit(1)\n")
    assert "engine" in (env.whole(layout) or "")


def test_wrong_python_is_one_line(layout, monkeypatch):
    monkeypatch.setattr(env.sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(env.SetupError, match=r"Python 3\.10\.4 .* use Python 3\.11 or 3\.12") as e:
        env.preflight(layout)
    assert e.value.code == env.BAD_CONFIG


def test_full_disk_is_refused_before_anything_is_installed(layout, monkeypatch):
    layout.site.rename(layout.site.with_name("gone"))
    monkeypatch.setattr(env.shutil, "disk_usage", lambda _p: type("U", (), {"free": 10**9})())
    with pytest.raises(env.SetupError, match="SPARKSERVE_VENV") as e:
        env.preflight(layout)
    assert e.value.code == env.CANNOT_WRITE


def test_the_base_wheel_is_had_from_the_patch_tool(layout):
    main = layout.root / "patches" / "__main__.py"
    main.write_text("import sys; assert sys.argv[1:3] == ['base', '-o']; print(sys.argv[3] + '/x.whl')\n")
    assert env.fetch_base_wheel(layout) == layout.wheels / "x.whl"
    main.write_text("raise SystemExit(69)\n")
    with pytest.raises(env.SetupError, match="wheel could not be had") as e:
        env.fetch_base_wheel(layout)
    assert e.value.code == env.UNAVAILABLE


def test_second_build_of_a_whole_environment_does_nothing(layout, monkeypatch):
    monkeypatch.setattr(env, "create_venv", lambda _l: pytest.fail("rebuilt"))
    monkeypatch.setattr(env, "NEED_BYTES", 0)
    assert env.build(layout) is False


def test_interrupted_build_leaves_no_stamp(layout, monkeypatch):
    layout.lock.write_text(LOCK + "delta==1\n")
    monkeypatch.setattr(env, "NEED_BYTES", 0)
    monkeypatch.setattr(env, "create_venv", lambda _l: None)

    def fails(_layout):
        raise env.SetupError(env.UNAVAILABLE, "no index")

    monkeypatch.setattr(env, "install_locked", fails)
    with pytest.raises(env.SetupError):
        env.build(layout)
    assert "did not finish" in (env.whole(layout) or "")


@pytest.mark.parametrize("name", ["plain", "with a blank", "it's", "long" * 40])
def test_the_command_starts_from_any_folder(layout, tmp_path, name):
    """A kernel cuts `#!` lines at blanks and after 127 bytes: such a script would not start at all."""
    root = tmp_path / name
    (root / "launch").mkdir(parents=True)
    (root / "launch" / "__init__.py").touch()
    cli = "import sys\n\n\ndef main():\n    print(sys.executable, sys.argv[1:])\n    return 7\n"
    (root / "launch" / "cli.py").write_text(cli)
    lay = env.Layout(root, root / ".venv")
    (lay.venv / "bin").mkdir(parents=True)
    lay.python.symlink_to(sys.executable)
    env.write_command(lay)
    argv = [lay.venv / "bin" / "sparkserve", "a b", "--c"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.endswith("['a b', '--c']\n")


def test_a_python_without_tomllib_is_refused_in_one_line():
    """Ubuntu 22.04 has 3.10: the refusal must come before an import fails there."""
    root = Path(env.__file__).parents[1]
    code = (
        "import sys; sys.modules['tomllib'] = None; import launch.environment as e; "
        "sys.version_info = (3, 10, 4, 'final', 0); sys.exit(e.main(['--check']))"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == env.BAD_CONFIG, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "use Python 3.11 or 3.12" in done.stderr


def test_make_without_any_python_does_not_report_success(tmp_path):
    """With an empty PYTHON make read `-m launch.environment` as "run m, never mind how it ends"."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    root = Path(env.__file__).parents[1]
    done = subprocess.run(
        [make, "env"], cwd=root, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "python3" in done.stderr


def test_runs_on_the_standard_library_alone():
    root = Path(env.__file__).parents[1]
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(root)!r}); import launch.environment",
    ]
    assert subprocess.run(argv, check=False).returncode == 0
