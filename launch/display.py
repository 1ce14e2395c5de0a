"""Tables and progress bars of the checkpoint commands (rich)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from launch.check import Finding
from launch.locks import LockedFile
from launch.plan import GIB, MemoryPlan, PlanFacts
from launch.pull import Reporter, Silent
from launch.verify import FileReport

STYLE = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red",
         "ok": "green", "unlocked": "yellow", "missing": "bold red", "wrong": "bold red"}  # fmt: skip


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left", show_edge=False, pad_edge=False)
    for c in columns:
        table.add_column(c, overflow="fold")
    return table


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False).print(table)


def findings_table(title: str, findings: list[Finding]) -> None:
    """PASS/WARN/FAIL, what was found, the preset key and the mend."""
    table = _table(title, "", "rule", "found", "key", "mend")
    for f in findings:
        verdict = f"[{STYLE[f.verdict]}]{f.verdict}[/]"
        table.add_row(verdict, escape(f.rule), escape(f.detail), escape(f.key), escape(f.mend))
    _print(table)


def files_table(title: str, reports: list[FileReport]) -> None:
    """One line per file of a verification."""
    table = _table(title, "", "file", "bytes", "detail")
    for r in reports:
        detail = r.detail or (f"sha256 {r.sha256[:16]}" if r.sha256 else "")
        note = " (no hash in the lock)" if r.state == "unlocked" else ""
        table.add_row(
            f"[{STYLE[r.state]}]{r.state}[/]",
            escape(r.path),
            f"{r.size:,}" if r.size else "",
            escape(detail) + note,
        )
    _print(table)


def plan_table(p: MemoryPlan, facts: PlanFacts) -> None:
    """Every term with formula and source, then what follows from them."""
    table = _table(f"memory plan of {p.slug}", "term", "GiB", "formula", "source")
    for t in p.terms:
        table.add_row(t.name, f"{t.size / GIB:.2f}", escape(t.formula), escape(t.source))
    _print(table)
    out = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    free = facts.free_bytes / GIB
    lines = [
        f"free before loading  {free:.1f} GiB ({facts.machine_source})",
        f"static fraction      {p.fraction:g} = {p.fraction * free:.1f} GiB; at most {p.fraction_max:.2f} is safe",
        f"state ratio          {p.ratio:g}; balanced for this request length: {p.ratio_balanced:g}",
        f"state slots          {p.state_slots}, {p.slots_per_request} a request",
        f"KV pool              {p.pool_tokens:,} tokens of {p.kv_bytes_per_token:,} B",
        f"longest context      {p.longest_context:,} tokens",
        f"requests at once     {p.concurrency}",
    ]
    lines += [f"assumed              {a}" for a in p.assumed]
    lines += [f"warning              {w}" for w in p.warnings]
    out.print("\n" + "\n".join(escape(line) for line in lines))


class _Bars:
    """A bar per file being received and one for the total; notes go above the bars."""

    def __init__(self, progress: Progress, title: str) -> None:
        self.progress, self.title = progress, title
        self.tasks: dict[str, TaskID] = {}
        self.total: TaskID | None = None
        self.lock = threading.Lock()

    def start(self, files: list[LockedFile]) -> None:
        if files:
            self.total = self.progress.add_task(escape(self.title), total=sum(f.size or 0 for f in files))
        for f in files:
            if (f.size or 0) >= 16 << 20:  # small files only count in the total
                self.tasks[f.path] = self.progress.add_task(escape(f"  {f.path}"), total=f.size)

    def advance(self, path: str, received: int) -> None:
        for task in (self.tasks.get(path), self.total):
            if task is not None:
                self.progress.advance(task, received)

    def note(self, text: str) -> None:
        self.progress.console.print(escape(text), highlight=False, soft_wrap=True)


class _Lines:
    """Without a terminal: a line every tenth of the total, so that logs stay short."""

    def __init__(self, title: str) -> None:
        self.title, self.total, self.got, self.said = title, 0, 0, 0
        self.lock = threading.Lock()

    def start(self, files: list[LockedFile]) -> None:
        self.total = sum(f.size or 0 for f in files)
        if files:
            print(f"{self.title}: {len(files)} files, {self.total / 1e9:.2f} GB", file=sys.stderr, flush=True)

    def advance(self, path: str, received: int) -> None:
        with self.lock:
            self.got += received
            tenth = 10 * self.got // self.total if self.total else 10
            if tenth > self.said:
                self.said = tenth
                print(f"{self.title}: {10 * tenth} % ({path})", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Reporter]:
    """A reporter for the terminal at hand: bars, plain lines, or nothing but notes on stderr."""
    if quiet:
        silent = Silent()
        try:
            yield silent
        finally:
            for note in silent.notes:
                print(note, file=sys.stderr)
    elif sys.stderr.isatty():
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
                              TransferSpeedColumn(), TimeRemainingColumn()]  # fmt: skip
        with Progress(*columns, console=Console(stderr=True)) as bars:
            yield _Bars(bars, title)
    else:
        yield _Lines(title)
