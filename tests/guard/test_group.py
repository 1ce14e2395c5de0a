"""Real processes are ended to the last one, and nobody else is."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.guard.group import MARK, end, family, is_alive, marked

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
TREES = {
    "plain child": "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', SLEEP]); READY; time.sleep(300)",
    "ignores TERM": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); READY; time.sleep(300)",
    "child that leaves the group and ignores TERM": (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-c', STUBBORN], start_new_session=True); READY; time.sleep(300)"
    ),
    "double fork into a session of its own": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        READY; time.sleep(300)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(300)"
    ),
    "dead parent, living child in its group": (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', STUBBORN]); READY"
    ),
}


def with_tag(tag):
    """Living processes whose environment has TAG=tag."""
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and is_alive(int(place.name)):
            with contextlib.suppress(OSError):
                if f"TAG={tag}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
    return found


@pytest.fixture
def tree(tmp_path, request):
    """tree(code): start it as the server is started (a group of its own, marked); (process, tag)."""
    started = []

    def go(code):
        tag = f"{os.getpid()}-{request.node.name}-{len(started)}".replace(" ", "-")
        ready = tmp_path / f"ready-{len(started)}"
        code = code.replace("READY", f"open({str(ready)!r}, 'w')").replace("STUBBORN", repr(STUBBORN))
        code = code.replace("SLEEP", repr("import time; time.sleep(300)"))
        again = f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {code!r}])"
        marker = f"import os; os.environ[{MARK!r}] = str(os.getpid()); {again}"
        p = subprocess.Popen(
            [sys.executable, "-c", marker], start_new_session=True, env={**os.environ, "TAG": tag}
        )
        started.append((p, tag))
        deadline = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ready.exists()
        return p, tag

    yield go
    for p, tag in started:
        for pid in with_tag(tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        p.wait()


@pytest.mark.parametrize("name", TREES)
def test_ends_all_of(name, tree):
    p, tag = tree(TREES[name])
    other, other_tag = tree(TREES["plain child"])
    assert with_tag(tag)
    assert end(p.pid, 0.5) is True
    assert with_tag(tag) == set()
    assert len(with_tag(other_tag)) == 2, "a process that is no relative was ended"
    assert other.poll() is None


def test_grace_is_given(tree):
    """A server that needs a moment to finish is not killed in it."""
    p, _ = tree(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(7)))\nREADY\ntime.sleep(300)"
    )
    assert end(p.pid, 60) is True
    assert p.wait() == 7


def test_hurry_takes_the_grace_away(tree):
    p, tag = tree(TREES["ignores TERM"])
    asked = []
    assert end(p.pid, 3600, hurry=lambda: (asked.append(1), len(asked) > 2)[1]) is True
    assert with_tag(tag) == set()


def test_nothing_there_is_nothing_left():
    assert end(2**22 + 1, 0.1) is True


def test_family_takes_groups_but_not_ours():
    table = {10: (1, 10), 11: (10, 10), 12: (1, 10), 13: (11, 13), 14: (1, 13), 20: (1, 20), 21: (11, 20)}
    # 12: orphan in the server's group; 13 leads a group, 14 is an orphan of it; 21 sits in a stranger's group.
    assert family(10, table) == {10, 11, 12, 13, 14, 21}


def test_mark_must_match_whole(tmp_path):
    for pid, text in ((5, f"{MARK}=77\0A=1\0"), (6, f"{MARK}=771\0"), (7, f"X{MARK}=77\0"), (8, "")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "environ").write_text(text)
    assert marked(77, [5, 6, 7, 8, 9], tmp_path) == {5}


def test_zombie_is_not_alive():
    p = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(p.pid)
    p.wait()
    assert is_alive(os.getpid())
