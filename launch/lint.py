"""`sparkserve lint-flags`: read a pasted community command line and say what this engine makes of it. Pure.

Understands `docker run … IMAGE …`, `python -m sglang.launch_server …`, `sglang serve …` and bare flags; line
continuations, comments and environment assignments in front. Nothing is run and no secret is printed.
"""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass, field
from typing import Literal

from launch.engine_keys import DENIED, DENIED_VALUES
from launch.errors import UsageError
from launch.flags import Flag, FlagTable, load_flags, scalar_problem
from launch.removed_flags import REMOVED, Removed

Level = Literal["ok", "note", "change", "warning", "error"]

SECRETS = {"--api-key", "--admin-api-key", "--ssl-keyfile-password"}
_SECRET_ENV = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY", re.IGNORECASE)
# docker run's options that take a value; the first other word is the image.
_DOCKER_VALUED = {
    "-v", "--volume", "-e", "--env", "-p", "--publish", "--name", "--gpus", "--shm-size", "--ipc", "--network",
    "--net", "--ulimit", "--memory", "-m", "--cpus", "--cpuset-cpus", "--restart", "--mount", "--env-file", "-u",
    "--user", "-w", "--workdir", "--entrypoint", "--device", "--cap-add", "--cap-drop", "--security-opt", "-h",
    "--hostname", "-l", "--label", "--log-driver", "--log-opt", "--runtime", "--pid", "--platform", "--pull",
    "--tmpfs", "--memory-swap", "--stop-timeout", "--health-cmd", "--add-host", "--dns", "--group-add",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark. `flag` is what was pasted."""

    level: Level
    flag: str
    text: str


@dataclass(slots=True)
class Report:
    """`argv` is the translated command line; `findings` in the order of the pasted words."""

    argv: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return sum(f.level == "error" for f in self.findings)

    def add(self, level: Level, flag: str, text: str) -> None:
        self.findings.append(Finding(level, flag, text))

    def command(self) -> str:
        return shlex.join(["python", "-m", "sglang.launch_server", *self.argv])


def lint(text: str, table: FlagTable | None = None) -> Report:
    """Translate a pasted command line. Raises UsageError when it is not one (unbalanced quotes, no flags)."""
    flags = table or load_flags()
    report = Report()
    words = _words(text)
    arguments = _engine_words(words, report)
    if not any(w.startswith("-") for w in arguments):
        raise UsageError("no engine flags found; paste the line that starts sglang, in quotes")
    _translate(arguments, flags, report)
    _across(report)
    return report


def _words(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError(f"cannot read the command line: {error}") from error


def _engine_words(words: list[str], report: Report) -> list[str]:
    """The words that are the engine's own arguments; remarks about docker's go into the report."""
    # `sh -c "…"` inside docker run: the quoted line is the command.
    for i, word in enumerate(words[:-1]):
        if word in ("-c", "-lc") and i > 0 and words[i - 1].rpartition("/")[2] in ("sh", "bash"):
            return _engine_words(words[:i] + _words(words[i + 1]), report)
    start = 0
    if _is_docker(words):
        start = _docker(words, report)
    for i, word in enumerate(words[start:], start):
        if "=" in word and not word.startswith("-") and _SECRET_ENV.search(word.partition("=")[0]):
            report.add(
                "warning", word.partition("=")[0], "a secret in a command line is readable by every user"
            )
        if word == "sglang.launch_server" or word.endswith("launch_server.py"):
            return words[i + 1 :]
        if word == "serve" and i and words[i - 1].rpartition("/")[2] == "sglang":
            return words[i + 1 :]
    for i, word in enumerate(words[start:], start):
        if word.startswith("-") and word not in ("-m", "-u", "-c"):
            return words[i:]
    return []


def _is_docker(words: list[str]) -> bool:
    return any(w.rpartition("/")[2] in ("docker", "podman") for w in words[:3]) and "run" in words[:5]


def _docker(words: list[str], report: Report) -> int:
    """Index behind the image; remarks on what matters for a server on a unified-memory machine."""
    i = words.index("run") + 1
    while i < len(words) and words[i].startswith("-"):
        name, equals, value = words[i].partition("=")
        takes = name in _DOCKER_VALUED and not equals
        if takes and i + 1 < len(words):
            value = words[i + 1]
        variable, has_value, _ = value.partition("=")
        if name in ("-e", "--env") and has_value and _SECRET_ENV.search(variable):
            report.add(
                "warning", f"{name} {variable}", "a secret in a command line is readable by every user"
            )
        elif name == "--privileged":
            report.add("warning", name, "not needed; our container runs without privileges")
        elif name in ("--memory", "-m"):
            report.add(
                "note", name, "does not bound CUDA allocations on unified memory; only the fraction does"
            )
        elif name == "--shm-size" and re.match(r"(?:1[6-9]|[2-9]\d|\d{3,})g", value, re.IGNORECASE):
            report.add("note", f"{name} {value}", "one GPU needs little shared memory; it counts as RAM")
        elif name == "--restart" and value in ("always", "unless-stopped"):
            report.add("note", f"{name} {value}", "hides a crash loop; use on-failure:3")
        i += 2 if takes else 1
    return i + 1


def _translate(words: list[str], flags: FlagTable, report: Report) -> None:
    i = 0
    while i < len(words):
        name, equals, inline = words[i].partition("=")
        values: list[str] = [inline] if equals else []
        i += 1
        if not name.startswith("-") or _number(name):
            if name in ("|", "&", "&&", "||", ";", ">", ">>", "2>&1"):
                break
            report.add("error", name, "belongs to no flag")
            continue
        if not equals:
            while i < len(words) and (not words[i].startswith("-") or _number(words[i])):
                if words[i] in ("|", "&", "&&", "||", ";", ">", ">>", "2>&1"):
                    break
                values.append(words[i])
                i += 1
        _flag(name.replace("_", "-") if name.startswith("--") else name, values, flags, report)


def _number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None


def _flag(name: str, values: list[str], flags: FlagTable, report: Report) -> None:
    if name in SECRETS:
        report.add("error", name, "a secret in argv is readable by every user; use serve --api-key-file")
        return
    flag = flags.by_name.get(name)
    if flag is None and name in REMOVED:
        _removed(name, values, REMOVED[name], flags, report)
        return
    if flag is None:
        # argparse takes any unambiguous prefix of a long flag
        starting = sorted({flags.by_name[n].flag for n in flags.by_name if n.startswith(name)})
        if len(starting) == 1:
            report.add("change", name, f"an abbreviation; write {starting[0]}")
            name, flag = starting[0], flags.by_name[starting[0]]
        else:
            nearest = starting[:3] or list(flags.nearest(name))
            hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
            report.add("error", name, f"sglang {flags.version} has no such flag{hint}")
            return
    if flag.deprecated:
        report.add("warning", name, f"deprecated; use {flag.deprecated}")
    elif name != flag.flag and not name.startswith("--no-"):
        report.add("change", name, f"write {flag.flag}")
    _emit(name if name.startswith("--no-") else flag.flag, flag, values, report)


def _removed(name: str, values: list[str], removed: Removed, flags: FlagTable, report: Report) -> None:
    if removed.flag is None:
        report.add("change", name, f"removed; {removed.advice}")
        return
    report.add("change", name, f"removed; {removed.advice}")
    if removed.value is not None:
        values = [removed.value]
    elif not removed.takes_value:
        values = []
    if removed.values:
        values = [removed.values.get(v, v) for v in values]
    _emit(removed.flag, flags.by_name[removed.flag], values, report)


def _emit(name: str, flag: Flag, values: list[str], report: Report) -> None:
    problem = _values_problem(flag, values)
    if problem:
        report.add("error", flag.flag, problem)
        return
    if flag.key == "quantization":
        if values[0].startswith("modelopt"):
            report.add("change", flag.flag, DENIED["quantization"])
            return
        report.add("note", flag.flag, "a plain draft inherits it unless its own quantization is given")
    elif flag.key in DENIED:
        report.add("error", flag.flag, DENIED[flag.key])
        return
    if values and (flag.key, values[0]) in DENIED_VALUES:
        report.add("error", f"{flag.flag} {values[0]}", DENIED_VALUES[flag.key, values[0]])
        return
    if flag.flag in report.argv:
        report.add("note", flag.flag, "given twice; the engine takes the last")
    report.argv += [name, *values]


def _values_problem(flag: Flag, values: list[str]) -> str | None:
    if flag.kind in ("switch", "toggle"):
        return f"takes no value, not {' '.join(values)!r}" if values else None
    if not values:
        return "needs a value"
    if flag.kind == "value" and len(values) > 1:
        return f"takes one value, not {' '.join(values)!r}"
    for text in values:
        try:
            value: object = {"int": _int, "float": float}.get(flag.type, str)(text)  # type: ignore[operator]
        except ValueError:
            return f"takes a number, not {text!r}"
        if flag.type == "json" or flag.choices is None:
            continue
        problem = scalar_problem(flag, value)
        if problem:
            close = difflib.get_close_matches(text, [str(c) for c in flag.choices], n=1)
            shown = f"; nearest: {close[0]}" if close else f"; one of {', '.join(map(str, flag.choices))}"
            return f"{text!r} is not one of its values{shown}"
    return None


def _int(text: str) -> int:
    # The engine's own human-readable form: 8k, 1M
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text)
    if found:
        return int(float(found[1]) * {"k": 1000, "m": 10**6, "g": 10**9}[found[2].lower()])
    return int(text)


def _value(report: Report, flag: str) -> str | None:
    if flag not in report.argv:
        return None
    i = len(report.argv) - 1 - report.argv[::-1].index(flag)
    return report.argv[i + 1] if i + 1 < len(report.argv) else None


def _across(report: Report) -> None:
    """What only shows when flags are seen together."""
    argv = report.argv
    has_draft = "--speculative-draft-model-path" in argv
    if has_draft and "--speculative-draft-model-quantization" not in argv:
        report.add(
            "warning",
            "--speculative-draft-model-path",
            "say --speculative-draft-model-quantization (unquant for a BF16 draft): otherwise it is inherited",
        )
    if has_draft and "--speculative-draft-model-revision" not in argv:
        report.add(
            "note", "--speculative-draft-model-revision", "not pinned: a changed draft changes your results"
        )
    if "--model-path" in argv and "--revision" not in argv and "/" in (_value(report, "--model-path") or ""):
        report.add(
            "note", "--revision", "not pinned: repositories of this family were changed under their users"
        )
    if has_draft and "--json-model-override-args" in argv:
        report.add("warning", "--json-model-override-args", "also reaches the draft without patch P04")
    if _value(report, "--host") == "0.0.0.0":  # noqa: S104
        report.add("warning", "--host 0.0.0.0", "reachable from everywhere; set an API key or use 127.0.0.1")
    fraction = _value(report, "--mem-fraction-static")
    if fraction is not None and float(fraction) > 0.85:
        report.add(
            "warning",
            f"--mem-fraction-static {fraction}",
            "freezes a machine with unified memory; 0.90 and 0.95 did (GB10). Fine on a discrete card",
        )
