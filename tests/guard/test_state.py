"""The state file: whole or not there, and read back after a restart."""

import json

import pytest

from launch.errors import CannotWrite
from launch.guard.state import Phase, State, load, save


def test_survives_a_restart(tmp_path):
    path = tmp_path / "state.json"
    state = State(
        low_water=5, floor=3, trip={"reason": "floor", "detail": "x"}, forced=["y"], restarts=2, pid=9
    )
    state.move(Phase.TRIPPED, now=100.0)
    save(path, state)
    assert load(path) == state
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"phase": "elsewhere"}', "\x00", '{"phase": 3}'])
def test_unreadable_is_none(tmp_path, text):
    (tmp_path / "s").write_text(text)
    assert load(tmp_path / "s") is None


def test_fields_of_another_version_are_ignored(tmp_path):
    (tmp_path / "s").write_text(json.dumps({"phase": "ready", "since": 1.0, "colour": "blue"}))
    assert load(tmp_path / "s") == State(phase=Phase.READY, since=1.0)


def test_full_or_missing_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="file"):
        save(tmp_path / "file" / "state.json", State())


@pytest.mark.parametrize("phase", Phase)
def test_health_is_200_only_when_ready(phase):
    s = State()
    s.move(phase, "a step", now=10.0)
    status, line = s.health(15.9)
    assert status == (200 if phase is Phase.READY else 503)
    assert line == f"{phase} for 5 s: a step"


def test_since_moves_with_the_phase_only():
    s = State()
    s.move(Phase.LOADING, "a", now=1.0)
    s.move(Phase.LOADING, "b", now=2.0)
    assert (s.since, s.step, s.answered) == (1.0, "b", False)
    s.move(Phase.READY, now=3.0)
    s.move(Phase.TRIPPED, now=4.0)
    assert (s.since, s.answered) == (4.0, True)
