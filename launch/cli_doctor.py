"""`sparkserve doctor`: what is wrong with this machine, and what mends it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from launch.errors import CheckFailed


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Also write a redacted archive for a bug report.")
    ] = None,
) -> None:
    """Judge this machine: driver, container toolkit, memory, killers, disk, hub. Exit code 1 when something FAILs."""
    from launch.doctor import Level, diagnose
    from launch.doctor_gather import gather

    found = diagnose(gather())
    data = json.dumps([dataclasses.asdict(c) for c in found], indent=2)
    if as_json:
        typer.echo(data)
    else:
        width = max(len(c.name) for c in found)
        for c in found:
            typer.echo(f"{c.level:<4}  {c.name:<{width}}  {c.detail}")
            if c.mend:
                typer.echo(f"{'':<6}{'':<{width}}  -> {c.mend}")
    if bundle is not None:
        _bundle(bundle, data)
        typer.echo(f"wrote {bundle}: look through it before you send it", err=True)
    bad = [c.name for c in found if c.level is Level.FAIL]
    if bad:
        raise CheckFailed(f"this machine is not fit to serve: {', '.join(bad)}")


def _bundle(path: Path, findings: str) -> None:
    from launch import __version__, bundle
    from launch.flags import load_flags
    from launch.hub import default_cache
    from launch.paths import state_dir

    home = Path.home()
    texts = bundle.parts(state_dir())
    texts["doctor.json"] = findings
    texts["versions"] = f"sparkserve {__version__}\nsglang {load_flags().version}\n"
    keys = [home / ".cache/huggingface/token", default_cache().parent / "token"]
    if named := os.environ.get("HF_TOKEN_PATH"):
        keys.append(Path(named))
    secrets = bundle.secrets_of(os.environ, keys)
    bundle.write(path, texts, secrets, [str(home)], bundle.private_names())
