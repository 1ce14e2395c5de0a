"""`sparkserve serve`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    preset: Annotated[
        str | None, typer.Argument(help="Preset name; without a GPU the fixture is the default.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Machine class; default: this machine's.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 30000,
    print_only: Annotated[bool, typer.Option("--print", help="Print the command line and exit.")] = False,
) -> None:
    """Serve a preset: start the engine, say when it answers, stop it cleanly."""
    from launch.commandline import command_for

    command = command_for(preset, machine, host=host, port=port).command
    if print_only:
        typer.echo(command.lines(), nl=False)
        return
    sys.exit(0)
