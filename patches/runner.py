"""Run the contracts on the released and on the patched engine, and judge what came of it.

On the released engine every test of a carried patch has to fail by itself and every guard has to pass; on
the patched one all pass. Contracts of state upstream pass on both. Which engine a process sees is a matter of
PYTHONPATH: two unpacked trees, cached under build/engine-trees by what they were made of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patches import apply, wheelfile
from patches.errors import ConfigError
from patches.series import HERE, Patch, Series

TREES = HERE.parent / "build" / "engine-trees"
RELEASED, PATCHED = "released", "patched"
ENGINES = (RELEASED, PATCHED)
_KEEP = 6  # trees left in the cache; each is some 120 MB


@dataclass(frozen=True)
class Case:
    """One test of a contract: outcome is passed, failed, error or skipped."""

    name: str
    outcome: str
    guard: bool = False
    message: str = ""


@dataclass
class Verdict:
    """One contract on one engine. `wrong` says, line by line, what is not as it must be."""

    patch: str
    contract: str
    engine: str
    required: int = 0  # tests that have to fail on the released engine (all others are guards)
    failed: int = 0
    passed: int = 0
    guards: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def summary(self) -> str:
        total = self.required + self.guards
        if self.engine == RELEASED and self.failed:
            text = f"{self.failed} of {self.required} failed, as they must"
            text += f", {self.guards} guards passed" if self.guards and self.ok else ""
        else:
            text = f"{self.passed} of {total} passed"
        return text if self.ok else f"BAD: {text}"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "ok": self.ok}


def judge(patch: Patch, engine: str, cases: Sequence[Case]) -> Verdict:
    """Whether these outcomes are what the patch's state asks for on this engine."""
    verdict = Verdict(patch.id, patch.contract or "", engine)
    must_fail = engine == RELEASED and patch.carried
    for case in cases:
        guard = case.guard or not patch.carried
        verdict.required += not guard
        verdict.guards += guard
        verdict.passed += case.outcome == "passed"
        verdict.failed += case.outcome == "failed" and not guard
        want = "failed" if must_fail and not guard else "passed"
        if case.outcome != want:
            why = f": {case.message}" if case.message else ""
            verdict.wrong.append(f"{case.name}: {case.outcome}, must be {want}{why}")
    if not cases:
        verdict.wrong.append("no test ran")
    elif patch.carried and not verdict.required and not verdict.wrong:
        verdict.wrong.append("every test is a guard: nothing shows that the patch does anything")
    return verdict


def trees(series: Series, wheel: Path, root: Path | None = None) -> dict[str, Path]:
    """Directories to put on PYTHONPATH for each engine; unpacked below `root` when not cached."""
    root = root or TREES
    apply.check_base(series, wheel)
    base_key = wheelfile.sha256_file(wheel)[:16]
    parts = [base_key, series.spark_version, *(wheelfile.sha256(series.read(p)) for p in series.carried)]
    key = wheelfile.sha256("\n".join(parts).encode())[:16]
    out = {RELEASED: root / f"released-{base_key}", PATCHED: root / f"patched-{key}"}
    if not out[RELEASED].is_dir():
        wheelfile.write_tree(wheelfile.read(wheel), out[RELEASED])
    if not out[PATCHED].is_dir():
        wheelfile.write_tree(apply.build(series, wheel)[1].members, out[PATCHED])
    prune(root, set(out.values()))
    return out


def prune(root: Path, keep: set[Path]) -> None:
    """Drop the oldest trees of the cache."""
    for path in keep:
        path.touch()
    others = [p for p in root.iterdir() if p.is_dir() and p not in keep]
    others.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    for path in others[max(0, _KEEP - len(keep)) :]:
        shutil.rmtree(path, ignore_errors=True)


def run(
    patches: Sequence[Patch],
    engine: str,
    tree: Path,
    *,
    isolate: bool = False,
    timeout_s: float = 3600,
    root: Path = HERE,
) -> list[Verdict]:
    """Verdicts of the contracts of `patches` on the engine in `tree`.

    One process runs them all (one import of the engine); with `isolate`, or when that process dies without a
    report, each file gets its own.
    """
    having = [p for p in patches if p.contract]
    for p in having:
        if not (root / str(p.contract)).is_file():
            raise ConfigError(f"{p.id}: contract {p.contract} does not exist")
    cases: dict[str, list[Case]] = {}
    if not isolate and len(having) > 1:
        with contextlib.suppress(_NoReportError):
            cases = _pytest([str(p.contract) for p in having], tree, timeout_s, root)
    verdicts = []
    for p in having:
        name = str(p.contract)
        if name not in cases:
            try:
                cases |= _pytest([name], tree, timeout_s, root)
            except _NoReportError as e:
                cases[name] = [Case(Path(name).stem, "error", message=str(e))]
        verdicts.append(judge(p, engine, cases.get(name, [])))
    return verdicts


class _NoReportError(Exception):
    """pytest ended without a usable report."""


def _pytest(contracts: list[str], tree: Path, timeout_s: float, root: Path) -> dict[str, list[Case]]:
    """contract -> its cases, from one pytest process on the engine in `tree`."""
    with tempfile.TemporaryDirectory(prefix="contracts-") as temp:
        report = Path(temp) / "report.xml"
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(tree), "SPARK_CONTRACT_ENGINE": str(tree)}
        # One user-wide torch extension or inductor cache must not carry code from one engine to the other.
        env |= {"TMPDIR": temp}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}", "--rootdir", str(root.parent)]
        command += [str(root / c) for c in contracts]
        code, output = _run(command, root.parent, env, timeout_s)
        tail = " / ".join(output.strip().splitlines()[-3:]) or "no output"
        if not report.is_file():
            raise _NoReportError(f"pytest ended with exit code {code} and no report: {tail}")
        try:
            return parse_report(report.read_text(encoding="utf-8"), contracts)
        except ET.ParseError:
            raise _NoReportError(f"pytest's report is broken (exit code {code}): {tail}") from None


def _run(command: list[str], cwd: Path, env: dict[str, str], timeout_s: float) -> tuple[int, str]:
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException as e:  # a time-out or Ctrl-C: the ranks it spawned must go too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            return -9, f"ended after {timeout_s:.0f} s"
    return process.returncode, output


def parse_report(text: str, contracts: Sequence[str]) -> dict[str, list[Case]]:
    """Cases by contract, from JUnit XML; a file that could not be collected is one case `error`."""
    stems = {Path(c).stem: c for c in contracts}
    out: dict[str, list[Case]] = {}
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314 (written by our own pytest)
        where = f"{case.get('file', '')}.{case.get('classname', '')}.{case.get('name', '')}"
        words = where.replace("/", ".").split(".")
        contract = next((stems[w] for w in words if w in stems), None)
        if contract is None:
            continue
        out.setdefault(contract, []).append(_case(case))
    return out


def _case(case: ET.Element) -> Case:
    outcome, message = "passed", ""
    for kind, called in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            outcome = called
            first = (found.get("message") or found.text or "").strip().splitlines()
            message = first[0][:200] if first else ""
            break
    guard = any(p.get("name") == "guard" for p in case.iter("property"))
    return Case(case.get("name", ""), outcome, guard, message)
