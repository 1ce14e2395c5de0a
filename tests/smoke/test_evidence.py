"""Every smoke report kept as evidence keeps to the schema and says what it holds for."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from smoke.report.model import SCHEMA_FILE

EVIDENCE = Path(__file__).resolve().parents[2] / "evidence" / "smoke"
REPORTS = sorted(EVIDENCE.glob("*/report.json"))


def test_there_is_evidence() -> None:
    assert REPORTS


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.parent.name)
def test_report_is_valid_and_bound(path: Path) -> None:
    report = json.loads(path.read_text())
    jsonschema.validate(report, json.loads(SCHEMA_FILE.read_text()))
    assert path.with_name("report.html").is_file()
    # The folder's name says what the report says: subject, hardware in words, profile, date.
    profile, date = path.parent.name.rsplit(".", 2)[1:]
    assert path.parent.name.startswith(report["bound"]["preset"])
    assert profile == report["bound"]["profile"]
    assert report["started"].startswith(date)
