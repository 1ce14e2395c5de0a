"""A start hands the planned slots and the engine's log to the comparison; without either, clamping goes by in silence."""

import pytest
from filelock import FileLock

from launch import cli_serve, realised
from launch.admission import Reservation
from launch.cli_serve import verify_start
from launch.errors import NotAdmitted
from launch.guard.policy import GIB
from launch.registry import Registry
from launch.resolve import resolve

MADE = "Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: 0.00GB\n"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A start of a preset whose slots follow from the plan: 392 of them. /server_info repeats that, whatever was made."""
    served = resolve(Registry().load("qwen3.8-27b-nvfp4-dflash2"), "gb10-128")
    assert "max_mamba_cache_size" not in served.engine
    assert served.preset.target.fixture is None
    answer = {"internal_states": [{"max_mamba_cache_size": 392}]}
    monkeypatch.setattr(realised, "fetch", lambda url, key: answer)

    def run(made, forced=(), free=30):
        monkeypatch.setattr(cli_serve, "free_now", lambda served: (free * GIB, 4 * GIB))
        log = tmp_path / "engine.log"
        log.write_text(MADE.format(made))
        record = {"pool_tokens": None, "running": None, "state_slots": 392, "forced": list(forced)}
        record |= {"available": 110 * GIB, "promised": 80 * GIB}
        note = Reservation(tmp_path / "a.json", record, FileLock(tmp_path / "a.lock"))
        verify_start(served, note, "http://127.0.0.1:1", None, log)
        assert record["realised"]["free_bytes"] == free * GIB
        return record["realised"]["state_slots"]

    return run


def test_slots_as_planned_are_noted(start):
    assert start(392) == 392


def test_fewer_slots_in_the_log_than_planned_end_the_start(start):
    with pytest.raises(NotAdmitted, match="196 state slots, more than 10% below the planned 392"):
        start(196)


def test_a_forced_start_is_only_told(start, capsys):
    assert start(196, forced=["does not fit"]) == 196
    assert "verify: 196 state slots" in capsys.readouterr().err


def test_memory_below_the_floor_at_ready_ends_the_start(start):
    with pytest.raises(NotAdmitted, match=r"3\.0 GiB of memory left at ready, below the guard's floor"):
        start(392, free=3)


def test_memory_short_of_the_plan_at_ready_is_told(start, capsys):
    start(392, free=20)
    assert "verify: 20.0 GiB of memory left at ready where the plan left 30.0 GiB" in capsys.readouterr().err
    start(392, free=29)
    assert "left at ready" not in capsys.readouterr().err


def test_free_memory_is_the_machines_and_a_lowered_floor_counts(monkeypatch):
    served = resolve(Registry().load("tiny-w4a4-dflash2"), "cpu")
    monkeypatch.delenv("SPARK_FLOOR_BYTES", raising=False)
    free, floor = cli_serve.free_now(served)
    assert free > 0
    assert floor >= 512 << 20
    for raw, expected in (("1048576", 1 << 20), (str(floor + 1), floor), ("much", floor)):
        monkeypatch.setenv("SPARK_FLOOR_BYTES", raw)
        assert cli_serve.free_now(served)[1] == expected
