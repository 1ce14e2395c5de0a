"""`sparkserve check | pull | verify | pin | promote | plan`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launch.errors import ConfigError, Interrupted, NotAdmitted, UsageError

if TYPE_CHECKING:
    from launch.hub import Hub
    from launch.preset import Preset

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
Machine = Annotated[str | None, typer.Option("--machine", help="Machine class; default: the preset's.")]
Cache = Annotated[Path | None, typer.Option("--cache", help="Hub cache; default: HF_HUB_CACHE, HF_HOME/hub.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File that holds a hub token (chmod 600).")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (check, pull, verify, pin, promote, plan):
        app.command()(command)


def _preset(name: str, *, usable: bool = False) -> Preset:
    """The preset; with `usable`, ConfigError for one that is known to be bad."""
    from launch.preset import Status
    from launch.registry import Registry

    loaded = Registry().load(name)
    if usable and loaded.status is Status.KNOWN_BAD:
        instead = f"; use {loaded.instead}" if loaded.instead else ""
        raise ConfigError(f"preset {name} is known to be bad: {loaded.why}{instead}")
    return loaded


def _hub(cache: Path | None, token_file: Path | None) -> Hub:
    from launch.hub import open_hub

    return open_hub(cache=cache, token_file=token_file)


@contextmanager
def _resumable(preset: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; what arrived stays: `sparkserve pull {preset}` resumes it") from None


def check(
    preset: str,
    *,
    machine: Machine = None,
    bake: Annotated[bool, typer.Option("--bake", help="The weights are to go into an image.")] = False,
    cache: Cache = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Check pair, quantization, licences, disk and memory before any weight moves. Exit 1 on FAIL."""
    from launch.check import Case, evaluate, failed
    from launch.checkpoint import Facts, from_folder, from_hub
    from launch.cli import print_json
    from launch.display import findings_table
    from launch.paths import fixtures_dir
    from launch.pinned import best_lock, checkpoints, pinned_repo
    from launch.resolve import resolve
    from launch.room import disk_finding, memory_finding

    loaded = _preset(preset)
    resolved = resolve(loaded, machine or loaded.default_machine)
    hub = _hub(cache, token_file)
    facts: dict[str, Facts] = {}
    if loaded.why is not None:  # known to be bad: say why, and fetch nothing
        facts["target"] = Facts(loaded.target.source, "not fetched", {})
    for role, checkpoint in checkpoints(loaded) if loaded.why is None else []:
        if checkpoint.fixture is not None:
            facts[role] = from_folder(fixtures_dir() / checkpoint.fixture, license=checkpoint.license)
        else:
            repo = pinned_repo(role, checkpoint)
            facts[role] = from_hub(hub, repo, best_lock(repo, checkpoint))
    findings = evaluate(Case(loaded, resolved.engine, facts["target"], facts.get("draft"), bake))
    if loaded.why is None:
        findings.append(
            disk_finding(hub, [(pinned_repo(r, c), facts[r]) for r, c in checkpoints(loaded) if c.repo])
        )
        findings.append(memory_finding(resolved))
    if as_json:
        print_json({"preset": preset, "machine": resolved.machine.name, "digest": loaded.digest,
                    "ok": not failed(findings), "findings": [f.as_json() for f in findings]})  # fmt: skip
    else:
        findings_table(f"{preset} on {resolved.machine.name}", findings)
    if failed(findings):
        raise typer.Exit(1)


def pull(
    preset: str,
    *,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=16, help="Files at once.")] = 4,
    cache: Cache = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Download a preset's checkpoints at their pinned commits, whole and verified."""
    from launch.cli import print_json
    from launch.display import progress
    from launch.pinned import best_lock, checkpoints, pinned_repo
    from launch.pull import pull as pull_repo

    loaded = _preset(preset, usable=True)
    hub, out = _hub(cache, token_file), []
    for role, checkpoint in checkpoints(loaded):
        if checkpoint.repo is None:
            typer.echo(
                f"{role}: {checkpoint.source} is built here, not pulled: sparkserve fixtures build", err=True
            )
            continue
        repo = pinned_repo(role, checkpoint)
        typer.echo(f"{role}: {repo} -> {hub.snapshot(repo)}", err=True)
        with progress(str(repo), quiet=as_json) as reporter, _resumable(preset):
            done = pull_repo(hub, repo, best_lock(repo, checkpoint), jobs=jobs, reporter=reporter)
        out.append({"role": role, "repo": repo.repo, "revision": repo.revision, "snapshot": str(done.snapshot),
                    "files": len(done.lock.files), "bytes": done.lock.total_bytes, "received": done.received,
                    "refetched": done.refetched, "learnt": done.learnt, "moved_to": done.moved_to,
                    "lock_file": str(done.lock_file) if done.lock_file else None})  # fmt: skip
        if not as_json:
            what = f"{len(done.received)} received" if done.received else "already complete"
            typer.echo(
                f"{role}: {len(done.lock.files)} files, {(done.lock.total_bytes or 0) / 1e9:.2f} GB, {what}, verified"
            )
            for line in done.learnt:
                typer.echo(f"  learnt: {line}")
            if done.lock_file:
                typer.echo(f"  complete lock: {done.lock_file}")
    if as_json:
        print_json(out)


def verify(
    preset: str,
    *,
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not hash again what has not changed since.")
    ] = False,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Compare what is here with the locks: every size, every sha256. No network. Exit 1 if not whole."""
    from launch.cli import print_json
    from launch.display import files_table
    from launch.fixturefiles import verify_fixture
    from launch.hub import Hub, default_cache
    from launch.paths import fixtures_dir
    from launch.pinned import best_lock, checkpoints, pinned_repo
    from launch.verify import verify_files

    hub = Hub(endpoint="", cache=(cache or default_cache()).absolute())
    out: list[dict[str, Any]] = []
    mends: list[str] = []
    for role, checkpoint in checkpoints(_preset(preset, usable=True)):
        if checkpoint.fixture is not None:
            what, revision, snapshot, partial = (
                checkpoint.source,
                None,
                fixtures_dir() / checkpoint.fixture,
                False,
            )
            reports = verify_fixture(fixtures_dir(), checkpoint.fixture)
            bad = [r for r in reports if r.state != "ok"]  # what the builder did not list is not its work
        else:
            repo = pinned_repo(role, checkpoint)
            lock = best_lock(repo, checkpoint)
            what, revision, snapshot, partial = str(repo), repo.revision, hub.snapshot(repo), lock.partial
            reports = verify_files(hub, repo, lock, rehash=not fast)
            bad = [r for r in reports if r.state in ("missing", "wrong")]
        if bad or not reports:
            mends.append(f"sparkserve {'fixtures build' if checkpoint.fixture else f'pull {preset}'}")
        out.append({"role": role, "repo": checkpoint.source, "revision": revision, "snapshot": str(snapshot),
                    "lock_partial": partial, "files": [vars(r) for r in reports]})  # fmt: skip
        if not as_json:
            files_table(f"{role}: {what}" + (" (partial lock)" if partial else ""), reports)
    whole = not mends
    if as_json:
        print_json({"preset": preset, "ok": whole, "checkpoints": out})
    elif not whole:
        typer.echo(f"not whole: run `{'` and `'.join(dict.fromkeys(mends))}`", err=True)
    if not whole:
        raise typer.Exit(1)


def pin(
    preset: str,
    *,
    revision: Annotated[
        str, typer.Option("--revision", help="Commit to pin: 40 hex digits, no branch or tag.")
    ],
    role: Annotated[str, typer.Option("--role", help="target or draft.")] = "target",
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the lock; default: launch/locks.")
    ] = None,
    cache: Cache = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Write the lock of a new revision and print what changes."""
    from launch.cli import print_json
    from launch.hub import Repo
    from launch.locks import LOCK_DIR
    from launch.pin import pin as pin_repo
    from launch.pinned import checkpoints

    loaded = _preset(preset, usable=True)
    chosen = dict(checkpoints(loaded)).get(role)
    if chosen is None or chosen.repo is None:
        raise UsageError(f"preset {preset} has no {role} on the hub to pin; --role is target or draft")
    done = pin_repo(_hub(cache, token_file), Repo(chosen.repo, revision, role), now=chosen.revision,
                    directory=output or LOCK_DIR)  # fmt: skip
    if as_json:
        print_json(
            {"lock": str(done.path), "before": done.before, "revision": revision, "changes": done.changes}
        )
        return
    typer.echo(f"{chosen.repo}: {done.before} -> {revision}")
    for line in done.changes or ["no file changes"]:
        typer.echo(f"  {line}")
    typer.echo(f"wrote {done.path}\nnow write in the preset, under [{role}]:")
    typer.echo(f'  revision = "{revision}"\n  lock = "locks/{done.path.name}"')


def promote(
    preset: str,
    *,
    report: Annotated[
        Path, typer.Option("--report", help="report.json of a complete smoke run on an image.")
    ],
) -> None:
    """Move a preset to `validated`, with a smoke report about exactly this preset, image and hardware."""
    from launch.paths import repo_root
    from launch.promote import promote as promote_preset
    from launch.registry import Registry

    registry = Registry()
    loaded = registry.load(preset)
    evidence = promote_preset(loaded, registry.folder / f"{preset}.toml", report, repo_root() / "evidence")
    typer.echo(f"{preset}: {loaded.status} -> validated\nevidence: {evidence}")


def plan(
    preset: str,
    *,
    machine: Machine = None,
    free_gib: Annotated[
        float | None,
        typer.Option("--free-gib", min=0.1, help="Free memory before loading, measured, in GiB."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print every term of the memory plan, and what fits. Exit 75 when it does not fit."""
    from launch.cli import print_json
    from launch.display import plan_table
    from launch.plan import as_json as plan_json
    from launch.plan import plan as make_plan
    from launch.planfacts import measured_here, plan_facts
    from launch.resolve import resolve

    loaded = _preset(preset)
    resolved = resolve(loaded, machine or loaded.default_machine)
    if free_gib is None and (here := measured_here(resolved)) is not None:
        facts = plan_facts(resolved, free_gib=here, measured_from="MemAvailable of this machine")
    else:
        facts = plan_facts(resolved, free_gib=free_gib)
    made = make_plan(resolved, facts)
    if as_json:
        print_json(plan_json(made))
    else:
        plan_table(made, facts)
    if not made.fits:
        mend = f"it fits with {made.mend}" if made.mend else "no one key makes it fit: choose another preset"
        raise NotAdmitted(f"{made.slug}: {'; '.join(made.problems)}; {mend}")
