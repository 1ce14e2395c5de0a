"""`python -m smoke PRESET` (sparkserve smoke) and `python -m smoke report diff|html`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from smoke import errors
from smoke.errors import SmokeError
from smoke.limit import TimeLimit, TimeUp
from smoke.plugin import run as run_checks
from smoke.profiles import PROFILES
from smoke.record import MemoryWatch, Recorder, bound, build
from smoke.report.model import Report
from smoke.session import Session
from smoke.subject import Subject, anonymous, load
from smoke.targets import Target
from smoke.wait import DEADLINES, tail


def parser() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser(
        prog="sparkserve smoke",
        description="Prove a preset on this machine and write the proof down. See docs/smoke.md.",
        epilog="Exit codes: 0 good, 1 a check failed, 2 usage, 70 the engine did not start or died, 73 cannot write, "
        "75 not admitted or guard tripped, 78 bad configuration, 130 interrupted. "
        "Reports: `sparkserve smoke report diff A B`, `sparkserve smoke report html REPORT`. "
        "Several presets side by side: `sparkserve smoke several --help`.",
    )
    ap.add_argument("preset", nargs="?", help="preset name; may be left out with --url")
    ap.add_argument(
        "--target", choices=("docker", "process", "url"), help="default: url with --url, else process"
    )
    ap.add_argument("--url", help="a running server, http://host:port")
    ap.add_argument(
        "--image", default=os.environ.get("SPARKSERVE_IMAGE", "sparkserve:latest"), help="docker target"
    )
    ap.add_argument("--no-gpu", action="store_true", help="docker target: ask for no GPU")
    ap.add_argument("--hub", type=Path, help="docker target: the host's Hugging Face home, mounted read-only")
    ap.add_argument(
        "--mount", action="append", default=[], metavar="HOST:INSIDE", help="docker target: read-only"
    )
    ap.add_argument("--network", help="docker target: `host` where Docker cannot publish ports")
    ap.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="docker target")
    ap.add_argument("--machine", help="machine class of the preset; default: this machine's")
    ap.add_argument("--profile", choices=tuple(PROFILES), default="quick")
    ap.add_argument("-k", dest="select", metavar="EXPR", help="only checks that match (pytest's -k)")
    ap.add_argument("--seed", type=int, default=1, help="seed of the prompts")
    ap.add_argument(
        "--deadline",
        action="append",
        default=[],
        metavar="PHASE=SECONDS",
        help=f"patience of a start phase: {', '.join(f'{k}={v:g}' for k, v in DEADLINES.items())}",
    )
    ap.add_argument("--control-url", help="a server of the same target without a draft, for greedy agreement")
    ap.add_argument("--api-key-file", type=Path, help="file that holds the server's API key (never in argv)")
    ap.add_argument("--hardware", help="what a --url server runs on, for the report")
    ap.add_argument("--note", action="append", default=[], help="a sentence for the report, word for word")
    ap.add_argument("--soak-hours", type=float, help="length of the soak profile; default 4")
    ap.add_argument("--port", type=int, help="process target: the engine's port; default: a free one")
    ap.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="end the run then; the rest is reported as not run",
    )
    ap.add_argument(
        "--report", type=Path, metavar="DIR", help="write report.json, report.html and the logs there"
    )
    ap.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML there")
    ap.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")
    return ap  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["report"]:
            from smoke.report.cli import main as report_main

            return report_main(argv[1:])
        if argv[:1] == ["several"]:
            from smoke.several import main as several_main

            return several_main(argv[1:])
        return smoke(parser().parse_args(argv))
    except SmokeError as e:
        _print_error(e)
        return e.code
    except KeyboardInterrupt:
        print("smoke: interrupted", file=sys.stderr)
        return errors.INTERRUPTED


def smoke(a: argparse.Namespace) -> int:
    kind = a.target or ("url" if a.url else "process")
    if kind == "url" and not a.url:
        raise SmokeError("--target url needs --url", "give http://host:port of the server", errors.USAGE)
    if kind != "url" and a.url:
        raise SmokeError(f"--url does not go with --target {kind}", "leave one of them out", errors.USAGE)
    if a.time_limit is not None and not a.time_limit > 0:
        raise SmokeError(f"--time-limit {a.time_limit:g} is no time", "give seconds above 0", errors.USAGE)
    if not a.preset and kind != "url":
        raise SmokeError("name a preset", "`sparkserve presets` lists them", errors.USAGE)
    if a.report:
        _writable(a.report)
    subject = load(a.preset, a.machine or _machine(kind)) if a.preset else anonymous(a.url)
    profile = PROFILES[a.profile]
    if a.soak_hours is not None:
        profile = type(profile)(**(vars(profile) | {"soak_s": a.soak_hours * 3600}))
    say = (lambda t: print(t, file=sys.stderr, flush=True)) if a.json else (lambda t: print(t, flush=True))
    rec = Recorder()
    for note in a.note:
        rec.note(note)
    target = _target(kind, a, subject)
    s = Session(subject, profile, target, rec, a.seed, deadlines=_deadlines(a.deadline), say=say)
    s.control_url = a.control_url
    s.limit = TimeLimit(a.time_limit, target.cut)
    say(f"smoke: {subject.name} ({subject.status}), target {kind}, profile {profile.name}, {target.url}")
    stopped: SmokeError | None = None
    interrupted = False
    with _stop_on_term(), MemoryWatch(target.memory_available, rec), s.limit:
        try:
            with s.limit.interruptible():
                boot = s.start(name="first boot")
            for took in boot:
                say(f"      {took.seconds:8.1f}s  start: {took.phase}")
            first_facts = s.facts
            run_checks(s, a.select, a.junit)
        except SmokeError as e:
            stopped, first_facts = e, s.known_facts
        except TimeUp:
            todo = "give --time-limit more seconds, or see the log for what the start waits for"
            words = f"{s.limit.reason} while the engine was starting"
            stopped, first_facts = SmokeError(words, todo, tail=tail(target.log())), s.known_facts
        except KeyboardInterrupt:
            interrupted, first_facts = True, s.known_facts
        finally:
            s.keep_log()
            what = bound(
                subject, s.known_facts, profile, target, seed=a.seed, label=a.hardware, logs=s.logs.values()
            )
            s.close()
            target.stop()
    late = s.limit.reason if s.limit.passed else None
    report = build(rec, what, first_facts, a.select, stopped=stopped, interrupted=interrupted, late=late)
    _deliver(report, s, a, say)
    if logs := target.tidy(keep=report.verdict != "good"):
        say(f"smoke: the engine's logs are kept in {logs}")
    if stopped:
        _print_error(stopped)
        return stopped.code
    if interrupted or late:
        return errors.INTERRUPTED
    if s.dead and report.failures:
        return errors.ENGINE
    return errors.OK if report.verdict == "good" else errors.NOT_GOOD


def _machine(kind: str) -> str | None:
    """This machine's class, when the engine will run here; the preset's default when it cannot be told."""
    if kind == "url":
        return None
    from launch.errors import SparkError
    from launch.machine import detect

    try:
        return str(detect().name)
    except SparkError:
        return None


def _target(kind: str, a: argparse.Namespace, subject: Subject) -> Target:
    key = _key(a.api_key_file)
    if kind == "url":
        from smoke.targets.url import UrlTarget

        if not str(a.url).startswith(("http://", "https://")):
            raise SmokeError(f"--url {a.url!r} is not a URL", "write http://host:port", errors.USAGE)
        return UrlTarget(a.url, key)
    if kind == "docker":
        from smoke.targets.docker import DockerTarget, Run

        bad = [w for w in a.mount if ":" not in w] + [w for w in a.env if "=" not in w]
        if bad:
            raise SmokeError(
                f"{bad[0]!r} is not understood", "write HOST:INSIDE, or NAME=VALUE", errors.USAGE
            )
        group = _key_group(a.api_key_file) if a.api_key_file else None
        run = Run(
            a.image,
            gpu=not a.no_gpu,
            hub=a.hub,
            mounts=tuple(a.mount),
            network=a.network,
            arguments=("--machine", subject.machine) if subject.machine else (),
            environment=tuple((n, v) for n, _, v in (w.partition("=") for w in a.env)),
            key_file=a.api_key_file,
            key_group=group,
        )
        return DockerTarget(subject.name, run, api_key=key)
    from smoke.targets.process import ProcessTarget

    return ProcessTarget(
        subject.name, port=a.port, machine=subject.machine, key_file=a.api_key_file, api_key=key
    )


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as e:
        raise SmokeError(f"cannot read {path} ({e.strerror})", "check --api-key-file", errors.USAGE) from e


def _key_group(path: Path) -> int | None:
    """As `sparkserve run`: the group by which the container's user may read the key."""
    from launch.cli_container import key_group
    from launch.errors import ConfigError

    try:
        return key_group(path)
    except ConfigError as e:
        problem, _, todo = str(e).rpartition("; ")
        raise SmokeError(problem, todo, errors.CONFIG) from e


def _deadlines(words: list[str]) -> dict[str, float]:
    out = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if name not in DEADLINES or seconds <= 0:
            known = ", ".join(f"{k}=SECONDS" for k in DEADLINES)
            raise SmokeError(f"--deadline {word!r} is not understood", f"write one of {known}", errors.USAGE)
        out[name] = seconds
    return out


def _writable(folder: Path) -> None:
    """Say so before the run, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        todo = "choose another --report folder"
        raise SmokeError(f"cannot write to {folder} ({e.strerror})", todo, errors.CANNOT_WRITE) from e


def _deliver(report: Report, s: Session, a: argparse.Namespace, say: object) -> None:
    assert callable(say)
    if a.report:
        from smoke.report.write import write, write_logs

        paths = write(report, a.report)
        for path in [*paths, *write_logs(s.logs, a.report, s.target.api_key)]:
            say(f"smoke: wrote {path}")
    if a.json:
        print(json.dumps(report.model_dump(mode="json"), indent=2))
    if report.stopped is None:
        say(f"smoke: {report.verdict.upper()}: {report.headline}")
        for note in report.notes:
            say(f"       note: {note}")


def _print_error(e: SmokeError) -> None:
    if e.tail:
        print("--- the log's tail ---\n" + e.tail + "\n----------------------", file=sys.stderr)
    print(f"smoke: {e.problem}. {e.todo}", file=sys.stderr)


@contextlib.contextmanager
def _stop_on_term() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, so that the engine it started is stopped too."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    try:
        old = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
