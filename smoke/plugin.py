"""The pytest plugin of one run: hands the session to the checks, says what cannot be asked, and records outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smoke.errors import NOT_GOOD, USAGE, CheckFailed, SmokeError
from smoke.limit import TimeUp
from smoke.report.model import Check
from smoke.session import Session
from smoke.targets import NotRun

CHECKS = Path(__file__).resolve().parent / "checks"

# The order of the groups: what a restart would disturb comes last.
ORDER = (
    "startup",
    "fast_path",
    "chat",
    "tools",
    "json_schema",
    "reasoning",
    "boundaries",
    "logprobs",
    "agreement",
    "acceptance",
    "concurrency",
    "long_context",
    "workloads",
    "cancellation",
    "hostile",
    "soak",
    "recovery",
    "second_boot",
    "offline_boot",
    "control_arm",
)

# What a check may need: marker argument -> (is it there, why not, does leaving it out matter).
# What the preset rules out by its nature does not matter; what this target or machine cannot show does.
_NEEDS: dict[str, tuple[Callable[[Session], object], str, bool]] = {
    "log": (
        lambda s: s.target.has_log,
        "the target has no log to read (use --target process or docker)",
        True,
    ),
    # An empty log would let every "no such line" pass.
    "engine-log": (
        lambda s: s.facts.log is not None and s.facts.log.ready > 0,
        "the log does not hold the engine's own lines (serve with --verbose)",
        True,
    ),
    "life": (
        lambda s: s.target.owns,
        "the server is not ours to restart (use --target process or docker)",
        True,
    ),
    "supervisor": (
        lambda s: s.target.supervised,
        "nothing supervises this engine (only the container does)",
        False,
    ),
    "no-supervisor": (
        lambda s: not s.target.supervised,
        "the container supervises it and restarts it",
        False,
    ),
    "preset": (lambda s: s.subject.status != "unknown", "no preset says what to expect of this server", True),
    "planted": (lambda s: s.subject.planted, "only a planted fixture's exact output is known", False),
    "capable": (
        lambda s: not s.subject.planted,
        "a planted fixture answers the same whatever it is asked",
        False,
    ),
    "speculative": (
        lambda s: s.facts.speculative or s.subject.speculative,
        "neither preset nor engine uses speculation",
        False,
    ),
    "gpu": (lambda s: not s.facts.on_cpu, "the CPU engine has none (no graphs, no GPU kernels)", True),
}


class SmokePlugin:
    """One instance per pytest.main call."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.interrupted = False
        self.unimportant: set[str] = set()  # checks not run whose absence does not matter

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "needs(*names): what the check cannot do without")
        config.addinivalue_line("markers", "boots: the check starts the engine itself")
        config.addinivalue_line("markers", "profile(name): the smallest profile that runs the check")

    @pytest.fixture
    def s(self) -> Session:
        """The run's session."""
        return self.session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        rank = {"quick": 0, "full": 1, "soak": 2}
        keep, drop = [], []
        for item in items:
            mark = item.get_closest_marker("profile")
            (drop if mark and rank[mark.args[0]] > self.session.profile.rank else keep).append(item)
        keep.sort(key=lambda i: ORDER.index(group_of(i)))
        items[:] = keep
        if drop:
            config.hook.pytest_deselected(items=drop)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.session.rec.left_out += sum(1 for i in items if not i.get_closest_marker("profile"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.session.dead:
            pytest.skip(self.session.dead)
        try:
            with self.session.limit.interruptible():
                if not item.get_closest_marker("boots"):
                    self.session.revive()
        except TimeUp:
            self._skip(item, self.session.limit.reason, matters=True)
        if self.session.dead:
            pytest.skip(self.session.dead)
        for mark in item.iter_markers("needs"):
            for name in (n for arg in mark.args for n in (("log", "engine-log") if arg == "log" else (arg,))):
                there, why, matters = _NEEDS[name]
                if not there(self.session):
                    self._skip(item, why, matters=matters)

    def _skip(self, item: pytest.Item, why: str, *, matters: bool) -> None:
        if not matters:
            self.unimportant.add(item.nodeid)
        pytest.skip(why)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            with self.session.limit.interruptible():
                return (yield)
        except NotRun as e:
            return self._skip(item, str(e), matters=e.matters)
        except TimeUp:
            return self._skip(item, f"{self.session.limit.reason} during this check", matters=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "call" or (call.when == "setup" and not report.passed):
            self._record(item, call, report)
        return report

    def _record(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        check = Check(
            group=group_of(item),
            name=item.name.removeprefix("test_"),
            title=title_of(item),
            outcome="passed",
            seconds=round(call.duration, 3),
        )
        error = call.excinfo.value if call.excinfo else None
        if report.skipped:
            reason = str(getattr(error, "msg", error))
            check = check.model_copy(
                update={
                    "outcome": "not run",
                    "reason": reason,
                    "matters": item.nodeid not in self.unimportant,
                }
            )
        elif isinstance(error, CheckFailed):
            update = {"outcome": "failed", "ident": error.ident, "problem": error.problem, "todo": error.todo}
            check = check.model_copy(update=update)
        elif isinstance(error, SmokeError):
            update = {"outcome": "failed", "ident": "engine", "problem": error.problem, "todo": error.todo}
            check = check.model_copy(update=update)
        elif error is not None:
            where = f"{type(error).__name__}: {error}"
            todo = (
                "this is an answer of a shape the check did not foresee, or a defect of the suite: report it"
            )
            check = check.model_copy(update={"outcome": "error", "problem": where[:500], "todo": todo})
        if check.outcome in ("failed", "error"):
            self.session.check_life(f"{check.group}/{check.name}")
        self.session.rec.checks.append(check)
        self._say(check)

    def _say(self, c: Check) -> None:
        word = {"passed": "ok", "failed": "FAIL", "error": "ERROR", "not run": "--"}[c.outcome]
        self.session.say(f"{word:5} {c.seconds:7.2f}s  {c.group}: {c.title}")
        if c.outcome == "not run":
            self.session.say(f"{'':16}not run: {c.reason}")
        elif c.outcome != "passed":
            self.session.say(f"{'':16}{c.problem}\n{'':16}what to do: {c.todo}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest calls this for its own Interrupted too (an error while collecting).
        self.interrupted = isinstance(excinfo.value, KeyboardInterrupt)


def group_of(item: pytest.Item) -> str:
    return Path(str(item.path)).stem.removeprefix("test_")


def title_of(item: pytest.Item) -> str:
    doc = (getattr(getattr(item, "function", None), "__doc__", None) or item.name).strip().splitlines()[0]
    params = getattr(getattr(item, "callspec", None), "id", None)
    return f"{doc.rstrip('.')} [{params}]" if params else doc.rstrip(".")


def run(
    session: Session, select: str | None = None, junit: Path | None = None, extra: tuple[str, ...] = ()
) -> int:
    """Run the checks in this process. Returns pytest's exit code; outcomes are in session.rec."""
    plugin = SmokePlugin(session)
    args = [
        "-c",
        str(CHECKS / "pytest.ini"),
        f"--rootdir={CHECKS}",
        "-p",
        "no:terminal",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:logging",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-p",
        "no:timeout",  # --time-limit uses the same signal
    ]
    args += ["-k", select] if select else []
    args += [f"--junitxml={junit}", "-o", "junit_suite_name=sparkserve-smoke"] if junit else []
    code = int(pytest.main([*args, *(extra or (str(CHECKS),))], plugins=[plugin]))
    if plugin.interrupted:
        raise KeyboardInterrupt
    if code in (2, 3, 4):  # pytest itself failed: never let that pass for "nothing failed"
        raise SmokeError(
            f"pytest ended with {code} before the checks could run",
            "if you gave -k, check its expression; else this is a defect of the suite: report it",
            USAGE if select else NOT_GOOD,
        )
    return code
