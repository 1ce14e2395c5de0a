"""`sparkserve serve`: options, the ready line, and what is printed where (words on stderr, results on stdout)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from launch.admission import Reservation
    from launch.commandline import Launch
    from launch.resolve import Resolved

DEFAULT_PORT = 30000


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(  # noqa: PLR0917  typer reads the options from the signature
    preset: Annotated[
        str | None, typer.Argument(help="Preset; without a GPU a fixture is the default.")
    ] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Class; default: this machine's.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = DEFAULT_PORT,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change an engine key by hand.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="Name clients ask for; default: the preset's.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File with the key clients must send.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", help="The engine's log; default: in the state folder.")
    ] = None,
    boot_timeout: Annotated[
        float, typer.Option("--boot-timeout", min=1, help="Seconds until it must have answered.")
    ] = 3600,
    force: Annotated[
        bool,
        typer.Option("--force", help="Start although the memory plan does not fit; recorded in the state."),
    ] = False,
    no_profile: Annotated[
        bool, typer.Option("--no-profile", help="Leave out what `sparkserve tune` found on this machine.")
    ] = False,
    print_only: Annotated[bool, typer.Option("--print", help="Print the command line and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the engine's whole log.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Serve a preset: start the engine, say when it answers, stop every process of it on Ctrl-C."""
    from launch.commandline import check_places, command_for, places

    name = served_model_name

    def launch(config_file: Path | None) -> Launch:
        return command_for(
            preset,
            machine,
            host=host,
            port=port,
            served_model_name=name,
            config_file=config_file,
            settings=settings or (),
            profile=not no_profile,
        )

    if print_only:
        config = Path("API-KEY-FILE.yaml") if api_key_file else None
        _print(launch(config), as_json)
        return

    from launch import serve as runner
    from launch.admission import admit
    from launch.paths import state_dir
    from launch.pinned import ensure_served

    key = runner.read_api_key(api_key_file) if api_key_file else None
    with runner.key_config(key) as config:
        started = launch(config)
        for note in started.notes:
            typer.echo(note, err=True)
        check_places(started.resolved, places())
        # Cheap refusals come before minutes of hashing.
        runner.check_port(host, port)
        if ensure_served(started.resolved.preset, say=lambda text: typer.echo(text, err=True)):
            # Everything is here and verified: the engine must not ask the hub for anything, least of all `main`.
            os.environ["HF_HUB_OFFLINE"] = "1"
        model = name or started.resolved.preset.name
        label = f"{started.resolved.preset.name}-{port}"
        # Last, so that nothing comes between the figures and the start.
        reservation = admit(
            started.resolved,
            label,
            state_dir() / "admission",
            force=force,
            say=lambda text: typer.echo(text, err=True),
        )
        log = log_file or state_dir() / "logs" / f"{label}.log"
        typer.echo(f"starting {model} on {started.resolved.machine.name}; engine log: {log}", err=True)

        def on_ready(seconds: float) -> None:
            if config is not None:
                config.unlink(missing_ok=True)
            verify_start(started.resolved, reservation, local_url(host, port), key, log)
            reservation.ready()
            typer.echo(
                ready_text(host, port, model=model, seconds=seconds, key=key is not None, as_json=as_json)
            )
            sys.stdout.flush()

        try:
            runner.run(
                started.command,
                runner.Options(
                    host=host,
                    port=port,
                    model=model,
                    log_file=log,
                    api_key=key,
                    boot_timeout_s=boot_timeout,
                    echo=verbose,
                    phase_file=Path(phase) if (phase := os.environ.get("SPARKSERVE_PHASE_FILE")) else None,
                    host_share=host_share(started.resolved),
                    on_ready=on_ready,
                ),
            )
        finally:
            reservation.release()


def verify_start(resolved: Resolved, reservation: Reservation, url: str, key: str | None, log: Path) -> None:
    """Compare the engine's own figures, and its log's, with the plan. Raises NotAdmitted when it clamped in silence.

    A start by --force is only told: the operator has already heard that it does not fit.
    """
    from launch.errors import NotAdmitted
    from launch.realised import compare, compare_free, fetch, read, with_log

    info = fetch(url, key)
    if info is None:
        typer.echo("verify: the engine does not answer /server_info; nothing was compared", err=True)
        return
    said = log.read_text(errors="replace") if log.is_file() else ""
    seen, record = with_log(read(info), said), reservation.record
    errors, notes = compare(
        seen,
        resolved.engine,
        pool_tokens=record["pool_tokens"],
        running=record["running"],
        slots=record["state_slots"],
        sized_by_plan=resolved.preset.target.fixture is None,
    )
    free, floor = free_now(resolved)
    short, told = compare_free(free, before=record["available"], need=record["promised"], floor=floor)
    errors, notes = [*errors, *short], [*notes, *told]
    record["realised"] = {
        "pool_tokens": seen.pool_tokens,
        "running": seen.running,
        "state_slots": seen.state_slots,
        "free_bytes": free,
    }
    for text in [*notes, *(errors if record["forced"] else [])]:
        typer.echo(f"verify: {text}", err=True)
    if errors and not record["forced"]:
        raise NotAdmitted(
            f"{resolved.slug} came up smaller than planned: {'; '.join(errors)}; "
            f"see `sparkserve plan {resolved.preset.name}` (--force serves it all the same)"
        )


def free_now(resolved: Resolved) -> tuple[int | None, int | None]:
    """(free bytes of the memory the plan is made for, the guard's floor in it): a discrete card's has no floor."""
    from launch.admission import gpu_free
    from launch.guard.policy import Limits, limits_from
    from launch.host.measure import measure

    if not (resolved.machine.unified or resolved.machine.name == "cpu"):
        return gpu_free(os.environ), None
    host = measure()
    if host.memory is None:
        return None, None
    limit = host.cgroup.limit if host.cgroup else None
    total = min(host.memory.total, limit or host.memory.total)
    floor = Limits.default(total).floor
    # A floor set higher is the guard's to enforce, with the reason it gives, and so is a bad value; one set lower counts.
    with contextlib.suppress(ValueError):
        floor = min(floor, limits_from(os.environ, total).floor)
    return host.available, floor


def host_share(resolved: Resolved) -> float:
    """What the engine leaves of the host's memory: on unified memory its static share is taken from the same pool."""
    fraction = resolved.engine.get("mem_fraction_static")
    return 1.0 - float(fraction) if resolved.machine.unified and isinstance(fraction, (int, float)) else 1.0


def local_url(host: str, port: int) -> str:
    """The server as reached from this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def _print(started: Launch, as_json: bool) -> None:
    command = started.command
    if as_json:
        data = {
            "preset": started.resolved.preset.name,
            "digest": started.resolved.preset.digest,
            "machine": started.resolved.machine.name,
            "argv": list(command.argv),
            "env": dict(command.env),
            "unset": list(command.unset),
            "notes": list(started.notes),
        }
        typer.echo(json.dumps(data, indent=2))
        return
    for note in started.notes:
        typer.echo(note, err=True)
    typer.echo(command.lines(), nl=False)


def ready_text(host: str, port: int, *, model: str, seconds: float, key: bool, as_json: bool) -> str:
    """The ready line with URL and a curl example, or one JSON object."""
    url = local_url(host, port)
    if as_json:
        return json.dumps({"event": "ready", "url": url, "model": model, "seconds": round(seconds, 1)})
    header = ' -H "Authorization: Bearer $(cat KEY_FILE)"' if key else ""
    hello = [{"role": "user", "content": "Hello"}]
    body = json.dumps({"model": model, "messages": hello, "max_tokens": 64, "temperature": 0})
    return (
        f"ready after {seconds:.0f} s: {url}/v1 serves {model}; stop with Ctrl-C\n"
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' -d '{body}'"
    )
