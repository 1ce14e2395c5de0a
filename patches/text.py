"""Tables for people: rich where it is installed and the output is a terminal, aligned text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_COLOURS = {
    "applied": "green",
    "applies": "green",
    "ok": "green",
    "carried": "green",
    "upstream": "cyan",
    "absorbed": "cyan",
    "dropped": "dim",
    "missing": "yellow",
    "drifted": "red",
    "fails": "red",
    "lacks": "red",
    "BAD": "red",
}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table
        except ImportError:
            pass
        else:
            view = Table(*headers, box=None, pad_edge=False)
            for row in rows:
                view.add_row(*(_paint(escape(cell)) for cell in row))
            Console().print(view)
            return
    widths = [max(len(r[i]) for r in [headers, *rows]) for i in range(len(headers))]
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def _paint(cell: str) -> str:
    colour = _COLOURS.get(cell.split(" ", 1)[0].rstrip(":,"))
    return f"[{colour}]{cell}[/{colour}]" if colour else cell
