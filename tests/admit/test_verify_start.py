"""A start hands the planned slots and the engine's log to the comparison; without either, clamping goes by in silence."""

import pytest
from filelock import FileLock

from launch import realised
from launch.admission import Reservation
from launch.cli_serve import verify_start
from launch.errors import NotAdmitted
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

    def run(made, forced=()):
        log = tmp_path / "engine.log"
        log.write_text(MADE.format(made))
        record = {"pool_tokens": None, "running": None, "state_slots": 392, "forced": list(forced)}
        note = Reservation(tmp_path / "a.json", record, FileLock(tmp_path / "a.lock"))
        verify_start(served, note, "http://127.0.0.1:1", None, log)
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
