"""PID 1's small decisions, without a container."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

RT = Path(__file__).resolve().parents[2] / "docker" / "rt"


@pytest.fixture
def init(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_RUN", str(tmp_path))
    spec = importlib.util.spec_from_file_location("docker_init", RT / "init.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["p", "--api-key-file", "/run/secrets/k", "--port", "1"], "/run/secrets/k"),
        (["p", "--api-key-file=/k"], "/k"),
        (["p", "--api-key-file"], ""),
        (["p"], ""),
    ],
)
def test_path_of_the_key_file_is_handed_to_the_guard(init, argv, path):
    assert init.key_file(argv) == path


def test_cache_folder_is_one_per_image_gpu_and_driver(init):
    keys = {
        init.cache_key(m, d, c)
        for m in (b"1", b"2")
        for d in ("580.95", "590.1")
        for c in ("sm121", "sm120", "")
    }
    assert len(keys) == 12
    assert init.cache_key(b"1", "", "").endswith("-cpu-nodriver")
    assert all("/" not in k for k in keys)


@pytest.mark.parametrize(
    ("note", "asked", "status", "code"),
    [
        ("75 the guard stopped the server: floor\n", [], 0, 75),
        ("70 x\n", [15], 0, 70),  # the keeper's word counts even when a stop came at the same moment
        (None, [15], 9, 0),
        (None, [], 9, 70),
        ("", [], 256, 70),
    ],
)
def test_exit_code_is_the_keeper_s_else_0_after_a_stop_else_70(
    init, tmp_path, capfd, note, asked, status, code
):
    if note is not None:
        (tmp_path / "exit-code").write_text(note)
    assert init.ending(status, asked) == code
    if note and note.strip():
        assert capfd.readouterr().out.startswith(f"ending with exit code {code}: ")


def test_lines_come_out_whole_and_as_json_when_asked(init, capfd):
    for as_json in (False, True):
        read, write = os.pipe()
        for part in (b"one\ntw", b"o\n\xff", b"three"):
            os.write(write, part)
        os.close(write)
        init.lines(read, as_json)
        out = capfd.readouterr().out.splitlines()
        texts = [json.loads(s)["line"] for s in out] if as_json else out
        assert texts == ["one", "two", "\ufffdthree"]


def test_leftovers_are_orphans_and_nothing_that_entered_from_outside():
    spec = importlib.util.spec_from_file_location("docker_server", RT / "server.py")
    server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(server)
    table = {
        1: (0, 1),  # init
        7: (1, 7),  # supervisord
        8: (7, 8),  # the guard
        9: (7, 9),  # us
        20: (1, 20),  # an orphan of the server before, with a child
        21: (20, 20),
        30: (0, 30),  # docker exec, with a child
        31: (30, 30),
    }
    assert server.leftovers(table, 9, 7) == {20, 21}
