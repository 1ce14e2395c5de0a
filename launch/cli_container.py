"""Commands about containers: run, stop, logs, ps, render."""

# ruff: noqa: PLR0917 (typer reads the options from the signature)
from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launch.errors import ConfigError, EngineFailed, Unavailable, UsageError

if TYPE_CHECKING:
    from launch.container import Spec

DEFAULT_IMAGE = "sparkserve:dev"
KINDS = ("compose", "systemd")

PresetArgument = Annotated[str, typer.Argument(help="Preset, as `sparkserve presets` lists them.")]
Image = Annotated[str, typer.Option("--image", envvar="SPARKSERVE_IMAGE", help="Image, best by digest.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on the host.")]
Bind = Annotated[str, typer.Option("--bind", help="Host address to publish on.")]
Hub = Annotated[
    Path | None, typer.Option("--hub", help="Hugging Face home; default: HF_HOME or ~/.cache/huggingface.")
]
KeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="File with the key clients must send.")]
MachineOption = Annotated[
    str | None, typer.Option("--machine", help="Machine class; default: this machine's.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=1, max=65535, help="Publish the guard's metrics and /healthz there too."
    ),
]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Environment of the container.")
]
Network = Annotated[
    str | None, typer.Option("--network", help="Docker network mode instead of a published port.")
]


def _hub(given: Path | None) -> Path:
    return (
        (given or Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"))
        .expanduser()
        .resolve()
    )


def spec(
    preset: str,
    image: str,
    port: int,
    bind: str,
    hub: Path | None,
    key_file: Path | None,
    machine: str | None,
    env: list[str] | None,
    network: str | None,
) -> Spec:
    """The container of a preset, after the same choice of preset and machine as `serve` makes."""
    from launch.commandline import choose
    from launch.container import Spec

    resolved, notes = choose(preset, machine)
    for note in notes:
        typer.echo(note, err=True)
    pairs = []
    for item in env or []:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError(f"--env {item!r}: give NAME=VALUE")
        pairs.append((name, value))
    if key_file is not None:
        from launch.serve import read_api_key

        read_api_key(key_file)
        key_file = key_file.expanduser().resolve()
        group = key_group(key_file)
    else:
        group = None
    fixture = resolved.preset.target.fixture is not None
    return Spec(
        preset=resolved.preset.name,
        image=image,
        gpu=resolved.machine.name != "cpu",
        bind=bind,
        port=port,
        hub=None if fixture else _hub(hub),
        key_file=key_file,
        key_group=group,
        arguments=("--machine", resolved.machine.name) if machine else (),
        environment=tuple(pairs),
        network=network,
    )


def key_group(path: Path) -> int | None:
    """The group the container's user must join to read the key; None when the file is that user's own."""
    from launch.container import UID

    found = path.stat()
    if found.st_uid == UID and found.st_mode & 0o400:
        return None
    if found.st_mode & 0o040 and found.st_gid:
        return found.st_gid
    raise ConfigError(
        f"--api-key-file {path}: the container's user ({UID}) cannot read it; "
        f"chmod 640 it (its group is given to the container), or chown it to {UID}"
    )


def _client() -> Any:
    import docker.errors

    import docker

    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except docker.errors.DockerException as e:
        raise Unavailable(
            f"no Docker engine answers ({str(e).splitlines()[0][:160]}); start it, or join the docker group"
        ) from e
    return client


def _container(client: Any, preset: str) -> Any:
    import docker.errors

    try:
        return client.containers.get(f"sparkserve-{preset}")
    except docker.errors.NotFound:
        known = ", ".join(c.labels["io.sparkserve.preset"] for c in _ours(client)) or "none"
        raise UsageError(f"no container of preset {preset}; there are: {known}") from None


def _ours(client: Any) -> list[Any]:
    found: list[Any] = client.containers.list(all=True, filters={"label": "io.sparkserve.preset"})
    return found


def run(
    preset: PresetArgument,
    image: Image = DEFAULT_IMAGE,
    port: Port = 30000,
    bind: Bind = "127.0.0.1",
    hub: Hub = None,
    api_key_file: KeyFile = None,
    machine: MachineOption = None,
    env: Env = None,
    network: Network = None,
    metrics_port: MetricsPort = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the docker command and exit.")] = False,
) -> None:
    """Run a preset in a container of the image, published on loopback."""
    from launch.container import docker_argv, sdk_options

    wanted = replace(
        spec(preset, image, port, bind, hub, api_key_file, machine, env, network), metrics_port=metrics_port
    )
    if print_only:
        typer.echo(shlex.join(docker_argv(wanted)))
        return
    import docker.errors
    import docker.types

    client = _client()
    options = sdk_options(wanted)
    if wanted.hub is not None and not wanted.hub.is_dir():
        raise ConfigError(
            f"no model cache at {wanted.hub}: run `sparkserve pull {preset}` first, or name it with --hub"
        )
    options["device_requests"] = [
        docker.types.DeviceRequest(**_lower(r)) for r in options.get("device_requests", [])
    ]
    try:
        old = client.containers.get(wanted.name)
    except docker.errors.NotFound:
        old = None
    if old is not None:
        if old.status == "running":
            raise UsageError(f"{wanted.name} is running already: sparkserve stop {preset}")
        old.remove()
    try:
        started = client.containers.run(**options)
    except docker.errors.ImageNotFound:
        raise ConfigError(
            f"there is no image {image}: build it (make image) or name one with --image"
        ) from None
    except docker.errors.APIError as e:
        raise EngineFailed(f"docker did not start {wanted.name}: {str(e.explanation or e).strip()}") from e
    typer.echo(f"{wanted.name} {started.short_id}: http://{bind}:{port}/v1 once `sparkserve ps` says ready")


def _lower(request: dict[str, Any]) -> dict[str, Any]:
    return {k.lower(): v for k, v in request.items()}


def stop(preset: PresetArgument) -> None:
    """Stop a preset's container: generations drain, then it ends; its exit code is shown."""
    from launch.container import STOP_GRACE_S

    found = _container(_client(), preset)
    found.stop(timeout=STOP_GRACE_S)
    code = found.wait()["StatusCode"]
    found.remove()
    typer.echo(f"sparkserve-{preset} ended with exit code {code}")


def logs(
    preset: PresetArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it writes.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=1, help="Last lines only.")] = 200,
) -> None:
    """Show a container's log."""
    found = _container(_client(), preset)
    if not follow:
        typer.echo(found.logs(tail=tail).decode(errors="replace"), nl=False)
        return
    for chunk in found.logs(stream=True, follow=True, tail=tail):
        typer.echo(chunk.decode(errors="replace"), nl=False)


def ps(as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False) -> None:
    """List our containers: state, health line, image."""
    rows = []
    for c in _ours(_client()):
        health = c.attrs["State"].get("Health") or {}
        last = (health.get("Log") or [{}])[-1].get("Output", "").strip()
        code = c.attrs["State"]["ExitCode"]
        state = c.status if c.status == "running" else f"{c.status} ({code})"
        rows.append(
            {
                "preset": c.labels["io.sparkserve.preset"],
                "state": state,
                "health": last,
                "image": c.attrs["Image"],
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for r in rows:
        typer.echo(f"{r['preset']}  {r['state']}  {r['health'] or '-'}  {r['image'][:19]}")


def _kind(given: str) -> str:
    """Checked as it is read: `render PRESET` must say that the kind is missing, not the preset."""
    if given not in KINDS:
        raise UsageError(
            f"render {given!r}: say first what to print ({' or '.join(KINDS)}), then the preset: "
            f"sparkserve render {KINDS[0]} PRESET"
        )
    return given


def render(
    kind: Annotated[str, typer.Argument(help=" or ".join(KINDS), metavar="KIND", callback=_kind)],
    preset: PresetArgument,
    image: Image = DEFAULT_IMAGE,
    port: Port = 30000,
    bind: Bind = "127.0.0.1",
    hub: Hub = None,
    api_key_file: KeyFile = None,
    machine: MachineOption = None,
    env: Env = None,
    network: Network = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Print a compose file or a systemd unit that runs a preset."""
    from launch.container import compose, systemd

    program = dict(zip(KINDS, (compose, systemd), strict=True))[kind]
    wanted = replace(
        spec(preset, image, port, bind, hub, api_key_file, machine, env, network), metrics_port=metrics_port
    )
    typer.echo(program(wanted), nl=False)


def provenance(
    image: Annotated[
        str | None, typer.Option("--image", help="From outside: an image on this machine's Docker engine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data as JSON.")] = False,
) -> None:
    """Say what an image is made of and check that every patch is in place (without --image: the one we run in)."""
    from launch.provenance import read, read_image, table

    found = read_image(_client(), image) if image else read()
    typer.echo(json.dumps(found, indent=2) if as_json else table(found))


def register(app: typer.Typer) -> None:
    for command in (run, stop, logs, ps, render, provenance):
        app.command()(command)
