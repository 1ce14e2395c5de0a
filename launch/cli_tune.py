"""`sparkserve tune PRESET`: measure the engine's choices on this GPU and keep what wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from launch.tune.judge import Row, Verdict


def register(app: typer.Typer) -> None:
    app.command()(tune)


def tune(
    preset: str,
    *,
    machine: Annotated[str | None, typer.Option("--machine", help="Class; default: this machine's.")] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="Stop after this; the next run goes on.")
    ] = 30,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="Seconds one measurement may take, compiling included.")
    ] = 600,
    again: Annotated[bool, typer.Option("--again", help="Forget the numbers kept for this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
) -> None:
    """Measure GEMM backends, FP8 path and autotune at a preset's shapes; `serve` then uses what wins here.

    Exit code 78 without an NVIDIA GPU, 70 when nothing could be measured.
    """
    from launch.cli import print_json
    from launch.commandline import choose, places
    from launch.errors import ConfigError, EngineFailed
    from launch.gemms import gemms_of
    from launch.paths import repo_root, state_dir
    from launch.tune import judge, profile, run, work

    key = profile.current_key(places().python)
    if key is None:
        raise ConfigError(
            "tune measures kernels and needs an NVIDIA GPU with its driver; none was found here"
        )
    resolved, notes = choose(preset, machine)
    gemms, source = gemms_of(resolved)
    items = work.work(resolved, key.capability, gemms)
    for note in (*notes, f"layers: {source}", f"{len(items)} measurements, at most {minutes:g} minutes"):
        typer.echo(note, err=True)
    done = run.tune(
        resolved, key, gemms, items, minutes=minutes, patience=patience, again=again,
        command=[places().python, "-m", "launch.tune._worker"], cwd=repo_root(),
        log=state_dir() / "logs" / "tune.log", say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
    rows = judge.table(items, done.profile.records, done.profile.bandwidth)
    tuned = done.profile.presets[resolved.preset.name]
    if as_json:
        print_json(
            {
                "profile": str(done.path), "key": key.model_dump(), "bandwidth": done.profile.bandwidth,
                "rows": [_row(r) for r in rows],
                **tuned.model_dump(mode="json"),
            }
        )  # fmt: skip
    else:
        _show(rows, done.verdicts, done.profile.bandwidth, key.gpu)
    typer.echo(f"wrote {done.path}", err=True)
    if done.outcome.unfinished:
        left = done.outcome.unfinished
        typer.echo(f"{left} measurements did not fit into the time; run it again to go on", err=True)
    if not any(r.us for r in rows):
        raise EngineFailed(f"nothing could be measured; see {state_dir() / 'logs' / 'tune.log'}")


def _row(row: Row) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(row)


def _show(rows: list[Row], verdicts: tuple[Verdict, ...], peak: float | None, gpu: str) -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{gpu}: {peak / 1e9:.0f} GB/s copy bandwidth, measured"
        if peak
        else f"{gpu}: no copy bandwidth measured"
    )
    table = Table(title=title, title_justify="left")
    for name in ("measurement", "us", "spread", "% of bandwidth"):
        table.add_column(name, justify="left" if name == "measurement" else "right", overflow="fold")
    for r in rows:
        if r.us is None:
            table.add_row(r.key, "-", "-", (r.error or "")[:80])
        else:
            share = f"{r.share:.0%}" if r.share is not None else "-"
            table.add_row(r.key, f"{r.us:.1f}", f"{r.spread:.1%}", share)
    Console(width=120).print(table)
    for v in verdicts:
        typer.echo(f"{v.role}: {v.chosen.name} ({v.why})")
