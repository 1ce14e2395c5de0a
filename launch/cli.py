"""The command `sparkserve`. Heavy imports wait until a command needs them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from launch.errors import Interrupted, SparkError, UsageError

app = typer.Typer(
    name="sparkserve",
    help="Serve pinned NVFP4 models with DFlash drafts on DGX Spark and SM120 machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
MachineOption = Annotated[
    str | None, typer.Option("--machine", help="Machine class; default: this machine's.")
]


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


@app.command()
def presets(
    machine: MachineOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those known to be bad.")] = False,
    as_json: Json = False,
) -> None:
    """List presets, one line each."""
    from launch.preset import Status
    from launch.registry import Registry

    found = Registry().load_all()
    if machine:
        from launch.machine import by_name

        found = [p for p in found if by_name(machine).name in p.machine]
    if not all_:
        found = [p for p in found if p.status is not Status.KNOWN_BAD]
    if as_json:
        fields = ("name", "title", "summary", "status", "default_machine")
        print_json([{**{f: getattr(p, f) for f in fields}, "machines": list(p.machine)} for p in found])
        return
    width = max((len(p.name) for p in found), default=0)
    for p in found:
        typer.echo(f"{p.name:<{width}}  {p.status:<12}  {', '.join(p.machine):<28}  {p.title}")


@app.command()
def show(preset: str, machine: MachineOption = None, as_json: Json = False) -> None:
    """Show a preset: checkpoints, pins, flags per machine, sources."""
    from launch.registry import Registry
    from launch.show import show_text

    loaded = Registry().load(preset)
    if as_json:
        print_json(
            {**loaded.model_dump(mode="json", by_alias=True, exclude_none=True), "digest": loaded.digest}
        )
    else:
        typer.echo(show_text(loaded, machine))


@app.command()
def schema() -> None:
    """Print the JSON Schema of preset files."""
    from launch.preset import json_schema

    print_json(json_schema())


@app.command()
def version(as_json: Json = False) -> None:
    """Print versions: this package and the engine it pins."""
    from launch import __version__
    from launch.flags import load_flags

    data = {"sparkserve": __version__, "sglang": load_flags().version, "python": sys.version.split()[0]}
    if as_json:
        print_json(data)
    else:
        typer.echo("\n".join(f"{k} {v}" for k, v in data.items()))


# A pasted line may begin with a flag: it is the argument, not an option of ours.
@app.command("lint-flags", context_settings={"ignore_unknown_options": True})
def lint_flags(
    command: Annotated[str, typer.Argument(help="The pasted command line in quotes; - reads it from stdin.")],
    as_json: Json = False,
) -> None:
    """Translate a community command line to this engine: removed, renamed, unknown and harmful flags."""
    from launch.errors import CheckFailed
    from launch.lint import lint

    report = lint(sys.stdin.read() if command == "-" else command)
    if as_json:
        findings = [{"level": f.level, "flag": f.flag, "text": f.text} for f in report.findings]
        print_json({"findings": findings, "argv": report.argv, "errors": report.errors})
    else:
        for f in report.findings:
            typer.echo(f"{f.level:<8} {f.flag}: {f.text}")
        typer.echo(report.command())
    if report.errors:
        raise CheckFailed(
            f"{report.errors} of these flags this engine does not take; they are left out above"
        )


@app.command(hidden=True)
def commands() -> None:
    """Print the names of the commands: the container's init tells them from presets."""
    import typer.main

    typer.echo("\n".join(sorted(typer.main.get_command(app).commands)))  # type: ignore[attr-defined]


_PASS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(
    context_settings=_PASS, help="Build and check the fixture checkpoints (python -m smoke.fixtures)."
)
def fixtures(ctx: typer.Context) -> None:
    _exec_module("smoke.fixtures", ctx.args)


@app.command(context_settings=_PASS, help="Prove a preset on this machine (python -m smoke).")
def smoke(ctx: typer.Context) -> None:
    _exec_module("smoke", ctx.args)


def _exec_module(module: str, args: list[str]) -> NoReturn:
    """Become another part of the repository: `launch` does not import it."""
    from launch.paths import repo_root

    root = str(repo_root())
    inherited = os.environ.get("PYTHONPATH")
    env = {**os.environ, "PYTHONPATH": f"{root}:{inherited}" if inherited else root}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *args], env)  # noqa: S606


def _register(module: str) -> None:
    """Commands that live in files of their own add themselves."""
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module).register(app)


for _module in (
    "launch.cli_serve",
    "launch.cli_checkpoints",
    "launch.cli_container",
    "launch.cli_doctor",
    "launch.cli_tune",
):
    _register(_module)


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point. Errors an operator can act on become one line on stderr and their exit code."""
    try:
        code = app(argv, prog_name="sparkserve", standalone_mode=False)
    except SparkError as error:
        # Ctrl-C is how a server is stopped: no error
        typer.echo(str(error) if isinstance(error, Interrupted) else f"error: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(Interrupted.exit_code) from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # typer's own usage errors
        where = getattr(getattr(error, "ctx", None), "command_path", "sparkserve")
        typer.echo(f"error: {error.format_message()} ({where} --help)", err=True)
        raise SystemExit(UsageError.exit_code) from None
    raise SystemExit(code if isinstance(code, int) else 0)
