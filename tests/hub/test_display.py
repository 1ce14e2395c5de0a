"""Progress and tables: bars on a terminal, short lines without one, nothing but notes when quiet; Ctrl-C."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from launch.display import _Bars, _Lines, progress
from launch.locks import LockedFile
from tests.hub.mirror import REV, Fault
from tests.hub.pulling import BIG, ROOT

BIG_FILE = LockedFile(path="model[1].safetensors", size=32 << 20)
SMALL_FILE = LockedFile(path="config.json", size=100)


def test_bars_for_large_files_and_the_total():
    out = io.StringIO()
    with Progress(console=Console(file=out, force_terminal=True, width=100), refresh_per_second=50) as bars:
        reporter = _Bars(bars, "acme/tiny@01234567")
        reporter.start([BIG_FILE, SMALL_FILE])
        reporter.advance(BIG_FILE.path, 16 << 20)
        reporter.advance(SMALL_FILE.path, 100)
        reporter.note("model[1] arrived damaged")
        tasks = {t.description.strip(): (t.completed, t.total) for t in bars.tasks}
    assert tasks["acme/tiny@01234567"] == ((16 << 20) + 100, (32 << 20) + 100)
    assert len(tasks) == 2  # the small file has no bar of its own
    assert "model[1] arrived damaged" in out.getvalue()


def test_lines_say_tenths_once(capsys):
    lines = _Lines("x")
    lines.start([LockedFile(path="a", size=1000)])
    for _ in range(100):
        lines.advance("a", 10)
    said = re.findall(r"x: (\d+) %", capsys.readouterr().err)
    assert said == [str(10 * i) for i in range(1, 11)]


def test_quiet_keeps_notes_on_stderr(capsys):
    with progress("x", quiet=True) as reporter:
        reporter.start([SMALL_FILE])
        reporter.advance("config.json", 100)
        reporter.note("moved to y")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "moved to y\n")


def test_ctrl_c_ends_a_pull_and_keeps_what_arrived(hub, files, mirror, tmp_path: Path):
    """SIGINT while a shard arrives: exit code 130, one line, no snapshot, and the staging file stays to be resumed."""
    mirror.faults[BIG] = Fault("stall", times=99, at=200_000)  # a retry must not finish it on a slow machine
    code = textwrap.dedent(
        f"""
        import huggingface_hub.constants as c
        c.DOWNLOAD_CHUNK_SIZE = 4096
        c.HF_HUB_DOWNLOAD_TIMEOUT = 1
        import launch.pull
        launch.pull.MIN_FREE = 0
        from launch.cli import main
        main(["pull", "t", "--cache", {str(hub.cache)!r}])
        """
    )
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "t.toml").write_text(
        f'schema = 1\nname = "t"\ntitle = "t"\nstatus = "experimental"\ndefault_machine = "h200"\n'
        f'[target]\nrepo = "acme/tiny"\nrevision = "{REV}"\n[machine.h200]\n'
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": mirror.url,
        "SPARKSERVE_PRESETS": str(presets),
    }
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    staging = hub.folder("acme/tiny") / "blobs"
    name = hashlib.sha256(files[BIG]).hexdigest()
    try:
        for _ in range(1200):
            found = list(staging.glob(f"{name}*.incomplete")) if staging.exists() else []
            if found and found[0].stat().st_size >= 100_000:
                break
            assert child.poll() is None, child.communicate()
            mirror.gate.wait(0.05)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait(10)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted; what arrived stays: `sparkserve pull t` resumes it" in err
    assert not (hub.folder("acme/tiny") / "snapshots").exists()
    assert list(staging.glob(f"{name}*.incomplete"))
