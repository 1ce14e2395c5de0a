"""The lock: two starts that fit one at a time cannot both pass; a dead server's promise is void."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from launch import admission
from launch.admission import admit, promised
from launch.errors import CannotWrite, NotAdmitted
from launch.host.measure import measure
from launch.registry import Registry
from launch.resolve import resolve

MACHINES = Path(__file__).resolve().parents[1] / "host" / "machines"
GIB = 1 << 30
FIXTURE = resolve(Registry().load("tiny-w4a4-dflash2"), "cpu")


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    monkeypatch.setattr(admission, "_here", lambda: "cpu")


def host(gib):
    h = measure(MACHINES / "vm-x86-cgroup1")
    return lambda: replace(h, memory=replace(h.memory, available=int(gib * GIB)))


def start(folder, name="a", gib=100.0, **more):
    said = []
    r = admit(
        FIXTURE,
        name,
        folder,
        **{"force": False, "say": said.append, "host": host(gib), "environ": {}, **more},
    )
    return r, said


def test_notes_what_was_decided(tmp_path):
    r, said = start(tmp_path)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["slug"] == "tiny-w4a4-dflash2@cpu"
    assert record["forced"] == []
    assert record["promised"] == promised(tmp_path) > 2 * GIB
    assert record["pid"] == os.getpid()
    assert said == record["notes"]
    r.ready()
    assert promised(tmp_path) == 0
    r.release()
    assert not (tmp_path / "a.json").exists()


def test_eight_starts_at_once_and_only_one_fits(tmp_path):
    """Room for one and a half; all ask at the same moment."""
    gate = threading.Barrier(8)
    passed, refused = [], []

    def one(i):
        gate.wait()
        try:
            passed.append(start(tmp_path, f"s{i}", gib=5.0)[0])
        except NotAdmitted as e:
            refused.append(str(e))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(passed), len(refused)) == (1, 7)
    assert all("more than the" in r for r in refused)
    # Once it answers, the machine's own figures count, and the next may come.
    passed[0].ready()
    start(tmp_path, "later", gib=5.0)[0].release()
    passed[0].release()


def test_same_preset_and_port_twice(tmp_path):
    r, _ = start(tmp_path)
    with pytest.raises(NotAdmitted, match="already running"):
        start(tmp_path)
    r.release()
    start(tmp_path)[0].release()


def test_refusal_leaves_no_promise(tmp_path):
    with pytest.raises(NotAdmitted, match=r"3\.\d GiB planned and a floor"):
        start(tmp_path, gib=1.0)
    assert promised(tmp_path) == 0
    assert list(tmp_path.glob("*.json")) == []
    start(tmp_path)[0].release()


def test_force_is_recorded(tmp_path):
    copy = tmp_path / "run" / "admission.json"
    r, said = start(tmp_path, gib=1.0, force=True, environ={"SPARKSERVE_ADMISSION_FILE": str(copy)})
    reasons = json.loads(copy.read_text())["forced"]
    assert len(reasons) == 1
    assert f"admission: started by force although: {reasons[0]}" in said
    r.release()


def test_killed_servers_promise_is_void(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from filelock import FileLock\n"
        "f = Path(sys.argv[1])\n"
        "lock = FileLock(f / 'dead.lock'); lock.acquire()\n"
        "(f / 'dead.json').write_text('{\"promised\": 12345}')\n"
        "print('up', flush=True); time.sleep(300)\n"
    )
    p = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n"
    assert promised(tmp_path) == 12345
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert promised(tmp_path) == 0
    assert not (tmp_path / "dead.json").exists()


def test_unwritable_state_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="SPARKSERVE_STATE"):
        start(tmp_path / "file" / "admission")


@pytest.mark.parametrize(("answer", "want"), [("1024\n", GIB), ("[N/A]\n", None), ("", None), ("²", None)])
def test_free_gpu_memory(tmp_path, monkeypatch, answer, want):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ \"$3 $4\" = \"-i 3\" ] || exit 9\nprintf '%s' '{answer.strip()}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert admission.gpu_free({"CUDA_VISIBLE_DEVICES": "3,4"}) == want
