"""The commands of `python -m patches`. Thin: parse, call, print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from patches import apply, basewheel, edit, readme, runner, series, trial, verify, wheelfile
from patches.errors import ConfigError, PatchError
from patches.series import HERE, Patch, Series
from patches.text import table


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on stderr."""
    args = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.run
    try:
        return command(args)
    except PatchError as e:
        print(f"patches: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("patches: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m patches", description="The patch series on SGLang.")
    parser.add_argument("--root", type=Path, default=HERE, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    p = add("status", _status, "the series as a table")
    p.add_argument("--json", action="store_true")
    p = add("apply", _apply, "make the patched wheel, or a patched tree")
    p.add_argument("wheel", nargs="?", type=Path, help="pinned released wheel (default: fetched)")
    p.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for the patched wheel")
    p.add_argument("--tree", type=Path, metavar="DIR", help="unpack the patched files here instead")
    p.add_argument("--only", nargs="+", metavar="ID", help="only these patches (the version says so)")
    p.add_argument("--json", action="store_true")
    p = add(
        "base", _base_wheel, "find or fetch the pinned released wheel of this interpreter; print its path"
    )
    p.add_argument("-o", "--output", type=Path, metavar="DIR", default=basewheel.WHEELS, help="where it lies")
    p = add("verify", _verify, "is a wheel, environment or tree whole; exit 1 when not")
    p.add_argument("target", nargs="?", help="wheel, directory or python (default: this environment)")
    p.add_argument("--json", action="store_true")
    p = add("try", _try, "what of the series applies to another release")
    p.add_argument("version")
    p.add_argument("--wheel", type=Path, help="that release's wheel (default: fetched)")
    p.add_argument("--contracts", action="store_true", help="run the contracts on it too")
    p.add_argument("--json", action="store_true")
    p = add("contracts", _contracts, "run every contract on the released and the patched engine")
    p.add_argument("ids", nargs="*", metavar="ID")
    p.add_argument("--engine", choices=["released", "patched", "both"], default="both")
    p.add_argument("--wheel", type=Path, help="pinned released wheel (default: fetched)")
    p.add_argument("--isolate", action="store_true", help="one process per contract file")
    p.add_argument("--json", action="store_true")
    p = add("refresh", _refresh, "recompute the file hashes in series.toml")
    p.add_argument("--wheel", type=Path, help="pinned released wheel (default: fetched)")
    p.add_argument("--check", action="store_true", help="write nothing; exit 1 when out of date")
    p = add("import-git", _import_git, "patch files from a git branch, one commit per patch")
    p.add_argument("repo", type=Path)
    p.add_argument("span", metavar="BASE..BRANCH")
    p.add_argument("--meta", type=Path, metavar="DIR", help="directory of ID.toml entries")
    p.add_argument("--wheel", type=Path, help="pinned released wheel (default: fetched)")
    p = add("readme", _readme, "write patches/README.md from series.toml")
    p.add_argument("--check", action="store_true", help="write nothing; exit 1 when out of date")
    return parser


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _chosen(known: Series, ids: Sequence[str] | None) -> list[Patch] | None:
    return [known.by_id(i) for part in ids for i in part.split(",") if i] if ids else None


def _base(known: Series, args: argparse.Namespace, *, any_platform: bool = False) -> Path:
    wheel: Path | None = args.wheel
    return wheel if wheel is not None else basewheel.base_wheel(known, any_platform=any_platform)


def _members(known: Series, args: argparse.Namespace) -> wheelfile.Members:
    wheel = _base(known, args, any_platform=True)
    apply.check_base(known, wheel)
    return wheelfile.read(wheel)


def _status(args: argparse.Namespace) -> int:
    known = series.load(args.root)
    if args.json:
        rows = [
            {
                "id": p.id,
                "title": p.title,
                "state": p.state,
                "since": p.since,
                "patch": p.patch,
                "contract": p.contract,
                "upstream": list(p.upstream),
                "files": sorted(p.files),
            }
            for p in known.patches
        ]
        _json({"base": known.version, "version": known.spark_version, "patches": rows})
        return 0
    print(f"sglang {known.version} -> {known.spark_version}, {len(known.carried)} patches carried")
    if known.patches:
        table(
            ("id", "state", "files", "title"),
            [
                (p.id, p.state + (f" since {p.since}" if p.since else ""), str(len(p.files) or ""), p.title)
                for p in known.patches
            ],
        )
    return 0


def _apply(args: argparse.Namespace) -> int:
    known = series.load(args.root)
    only = _chosen(known, args.only)
    if not_carried := [p.id for p in only or [] if not p.carried]:
        raise ConfigError(f"{', '.join(not_carried)}: not carried, there is nothing to apply")
    if (args.output is None) == (args.tree is None):
        raise ConfigError("say either -o DIR (a wheel) or --tree DIR (unpacked files)")
    wheel = _base(known, args)
    if args.tree is not None:
        version, outcome = apply.build(known, wheel, only)
        wheelfile.write_tree(outcome.members, args.tree)
        target: Path = args.tree
    else:
        target, outcome = apply.build_wheel(known, wheel, args.output, only)
        version = wheelfile.name_parts(target)[1]
    for note in outcome.notes:
        _say(note)
    if args.json:
        _json({"output": str(target), "version": version, "patches": sorted(outcome.files)})
    else:
        print(target)
    return 0


def _base_wheel(args: argparse.Namespace) -> int:
    print(basewheel.base_wheel(series.load(args.root), args.output))
    return 0


def _verify(args: argparse.Namespace) -> int:
    report = verify.verify(series.load(args.root), verify.open_target(args.target or verify.default_target()))
    if args.json:
        _json(report.to_json())
        return 0 if report.whole else 1
    print(f"{report.target}: sglang {report.version}", end="")
    print("" if report.version == report.expected_version else f" (expected {report.expected_version})")
    if report.patches:
        table(("id", "state", "title"), [(p.id, p.state, p.title) for p in report.patches])
    for p in report.patches:
        if p.note and p.state not in {"applied", "upstream", "dropped"}:
            print(f"{p.id}: {p.note}")
    if report.bad_records:
        shown = ", ".join(report.bad_records[:5]) + (" ..." if len(report.bad_records) > 5 else "")
        print(f"{len(report.bad_records)} engine files are not as their RECORD says: {shown}")
    print("whole" if report.whole else "NOT whole: reinstall the patched wheel (python -m patches apply)")
    return 0 if report.whole else 1


def _try(args: argparse.Namespace) -> int:
    known = series.load(args.root)
    wheel = args.wheel or basewheel.fetch(args.version)
    report = trial.try_series(known, wheel)
    if report.version != args.version:
        raise ConfigError(f"{wheel.name}: is not a wheel of {args.version}")
    verdicts = _try_contracts(known, wheel, report) if args.contracts else []
    if args.json:
        _json({**report.to_json(), "contracts": [v.to_json() for v in verdicts]})
    else:
        print(f"the series of {known.version} on sglang {report.version} ({wheel.name})")
        table(("id", "result", "title"), [(t.id, t.result, t.title) for t in report.trials])
        for t in report.trials:
            for detail in t.details:
                print(f"{t.id}: {detail}")
        if verdicts:
            print_verdicts(verdicts)
    return 0 if report.good and all(v.ok for v in verdicts) else 1


def _try_contracts(known: Series, wheel: Path, report: trial.Report) -> list[runner.Verdict]:
    """The contracts on another release as it is and with what applied of the series.

    What that release has absorbed is judged as upstream: it passes on both.
    """
    absorbed = {t.id for t in report.trials if t.result == trial.ABSORBED}
    patches = [replace(p, state="upstream") if p.id in absorbed else p for p in known.patches]
    verdicts = []
    key = wheelfile.sha256_file(wheel)[:16]
    parts = [wheelfile.sha256(known.read(p)) for p in known.carried]
    patched_key = wheelfile.sha256("\n".join([key, *parts]).encode())[:16]
    for engine, name in (("released", f"released-{key}"), ("patched", f"tried-{patched_key}")):
        tree = runner.TREES / name
        if not tree.is_dir():
            members = wheelfile.read(wheel) if engine == "released" else report.members
            wheelfile.write_tree(members, tree)
        _say(f"contracts on {engine} {report.version}")
        verdicts += runner.run(patches, engine, tree, root=known.root)
    return verdicts


def _contracts(args: argparse.Namespace) -> int:
    known = series.load(args.root)
    patches = _chosen(known, args.ids) or list(known.patches)
    engines = runner.ENGINES if args.engine == "both" else (args.engine,)
    trees = runner.trees(known, _base(known, args))
    verdicts: list[runner.Verdict] = []
    for engine in engines:
        _say(f"contracts on the {engine} engine ({trees[engine].name})")
        verdicts += runner.run(patches, engine, trees[engine], isolate=args.isolate, root=known.root)
    good = all(v.ok for v in verdicts)
    if args.json:
        _json({"good": good, "contracts": [v.to_json() for v in verdicts]})
    else:
        print_verdicts(verdicts)
        print("every contract behaves" if good else "NOT every contract behaves")
    return 0 if good else 1


def print_verdicts(verdicts: Sequence[runner.Verdict]) -> None:
    """The table of verdicts, and below it every line that is wrong."""
    engines = [e for e in runner.ENGINES if any(v.engine == e for v in verdicts)]
    by = {(v.patch, v.engine): v for v in verdicts}
    ids = list(dict.fromkeys(v.patch for v in verdicts))
    rows = [(i, *(by[i, e].summary if (i, e) in by else "" for e in engines)) for i in ids]
    table(("id", *engines), rows)
    for v in verdicts:
        for line in v.wrong:
            print(f"{v.patch} on {v.engine}: {line}")


def _refresh(args: argparse.Namespace) -> int:
    known = series.load(args.root, hashes=False)
    changed = edit.refresh(args.root, _members(known, args), check=args.check)
    print("series.toml rewritten" if changed else "series.toml is up to date")
    return 0


def _import_git(args: argparse.Namespace) -> int:
    known = series.load(args.root, hashes=False)
    written = edit.import_git(args.root, args.repo, args.span, args.meta, _members(known, args))
    print("\n".join(written))
    return 0


def _readme(args: argparse.Namespace) -> int:
    changed = readme.write(series.load(args.root), check=args.check)
    print("patches/README.md rewritten" if changed else "patches/README.md is up to date")
    return 0


def _json(data: object) -> None:
    print(json.dumps(data, indent=1))
