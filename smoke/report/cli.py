"""`sparkserve smoke report diff A B` and `... html REPORT`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from smoke.errors import NOT_GOOD, OK
from smoke.report.diff import diff, render
from smoke.report.model import schema_text
from smoke.report.write import read, write


def main(argv: list[str]) -> int:
    """diff ends with 1 when a check got worse, so that a pipeline can gate on it."""
    ap = argparse.ArgumentParser(prog="sparkserve smoke report", description=__doc__)
    sub = ap.add_subparsers(dest="command", required=True)
    p = sub.add_parser("diff", help="what changed from report A to report B; exit 1 when a check got worse")
    p.add_argument("a", type=Path)
    p.add_argument("b", type=Path)
    p.add_argument("--json", action="store_true")
    p = sub.add_parser("html", help="draw report.html again from a report.json")
    p.add_argument("report", type=Path)
    p.add_argument("--to", type=Path, help="folder; default: where the report lies")
    sub.add_parser("schema", help="print the JSON Schema of report.json")
    a = ap.parse_args(argv)
    if a.command == "schema":
        print(schema_text(), end="")
        return OK
    if a.command == "html":
        folder = a.to or (a.report if a.report.is_dir() else a.report.parent)
        print("\n".join(str(x) for x in write(read(a.report), folder)))
        return OK
    d = diff(read(a.a), read(a.b))
    print(json.dumps(dataclasses.asdict(d), indent=2) if a.json else render(d))
    return NOT_GOOD if d.worse or d.gone else OK
