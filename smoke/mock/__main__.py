"""`python -m smoke.mock [--port N] [--capable] [--fault NAME ...]`: serve the mock, to try the suite by hand."""

from __future__ import annotations

import argparse

import uvicorn

from smoke.mock.app import create
from smoke.mock.faults import NAMES
from smoke.mock.state import State


def main() -> None:
    ap = argparse.ArgumentParser(prog="python -m smoke.mock", description=__doc__)
    ap.add_argument("--port", type=int, default=30001)
    ap.add_argument("--capable", action="store_true", help="answer like a model, not like a planted fixture")
    ap.add_argument(
        "--fault", action="append", default=[], choices=NAMES, metavar="NAME", help=", ".join(NAMES)
    )
    a = ap.parse_args()
    state = State(planted=not a.capable, faults=frozenset(a.fault), armed=True, boots=1)
    uvicorn.run(create(state), host="127.0.0.1", port=a.port, log_level="warning")


if __name__ == "__main__":
    main()
