"""Each check passes on the healthy mock engine and fails on the fault that it names, at the assertion that it names."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from smoke.mock.faults import FAULTS
from smoke.plugin import CHECKS, ORDER

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]


@cache
def outcomes() -> dict[str, list[dict[str, Any]]]:
    """Everything in one child process, in two halves at once."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(Path(__file__).with_name("bench_faults.py"))]
    halves = [
        subprocess.Popen([*program, f"--part={i}/2"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(2)
    ]
    out: dict[str, list[dict[str, Any]]] = {}
    for p in halves:
        text, err = p.communicate(timeout=600)
        assert p.returncode == 0, err.decode()[-2000:]
        out |= json.loads(text)
    return out


def idents() -> dict[str, str]:
    """Every `expect("ident", ...)` in the checks, and where it stands."""
    found: dict[str, str] = {}
    for path in sorted(CHECKS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "expect":
                first = node.args[0]
                assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: the ident must be a literal"
                assert first.value not in found, f"{path}:{node.lineno}: {first.value} is taken"
                found[str(first.value)] = f"{path.name}:{node.lineno}"
    return found


def test_every_assertion_has_a_fault() -> None:
    """Dropping an assertion, or adding one that no fault trips, is noticed here."""
    assert set(idents()) == {f.ident for f in FAULTS}


def test_every_check_has_a_fault() -> None:
    covered = {f.check for f in FAULTS}
    for path in CHECKS.glob("test_*.py"):
        names = [n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        for name in names:
            if name.startswith("test_"):
                assert f"{path.name}::{name}" in covered


def test_every_group_has_its_place() -> None:
    assert {p.stem.removeprefix("test_") for p in CHECKS.glob("test_*.py")} == set(ORDER)


@pytest.mark.parametrize("model", ["planted", "capable"])
def test_healthy_engine_passes(model: str) -> None:
    checks = outcomes()[f"healthy {model}"]
    assert [
        (c["group"], c["name"], c["problem"]) for c in checks if c["outcome"] in ("failed", "error")
    ] == []
    assert sum(c["outcome"] == "passed" for c in checks) > 100


def test_every_check_ran_on_one_of_the_healthy_engines() -> None:
    ran: set[tuple[str, str]] = set()
    asked: set[tuple[str, str]] = set()
    for model in ("planted", "capable"):
        for c in outcomes()[f"healthy {model}"]:
            asked.add((c["group"], c["name"]))
            if c["outcome"] == "passed":
                ran.add((c["group"], c["name"]))
    assert asked == ran


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.name}->{f.ident}")
def test_fault_is_found_where_it_shows(fault: Any) -> None:
    checks = outcomes()[f"{fault.name} -> {fault.ident}"]
    bad = [c for c in checks if c["outcome"] != "passed"]
    assert bad, f"{fault.check} passes on an engine with {fault.name}"
    for c in bad:
        assert (c["outcome"], c["ident"]) == ("failed", fault.ident), c["problem"] or c["reason"]
        assert len(c["problem"]) > 15
        assert len(c["todo"]) > 15, "a failure says what to do next"
