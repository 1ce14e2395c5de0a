"""A preset that cannot be tried is refused in one sentence, with what to do said once."""

from __future__ import annotations

import pytest

from smoke import subject
from smoke.errors import USAGE, SmokeError


def test_an_unknown_preset_says_once_where_the_names_are() -> None:
    with pytest.raises(SmokeError) as e:
        subject.load("nothing-like-it")
    assert e.value.code == USAGE
    assert e.value.problem == "unknown preset 'nothing-like-it'"
    assert str(e.value).count("sparkserve presets") == 1
