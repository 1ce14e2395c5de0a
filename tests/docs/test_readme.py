"""What the README tells a newcomer to type is what the tests run."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from launch import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def console(text: str) -> list[str]:
    """The lines after a `$` prompt in the console blocks of a page."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_two_commands_do_all_set_up():
    assert console(README)[:2] == ["make demo", "make test"]


def test_ci_runs_the_second_command():
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_every_make_target_named_in_the_docs_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    named = set(
        re.findall(r"(?:^|[`\s])make ([a-z][a-z-]*)\b(?=[`\s,.:;)]|$)", "\n".join(_code(page.read_text())))
    )
    assert named <= targets, f"{page.name} names make targets that do not exist: {sorted(named - targets)}"


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_every_file_named_in_the_docs_exists(page):
    roots = "docs|patches|launch|smoke|docker|tests|bench|evidence"
    named = {
        m[1].rstrip("/") for m in re.finditer(rf"`((?:{roots})/[\w./-]*|[A-Z]+\.md)`", page.read_text())
    }  # only plain paths: those with a placeholder hold other characters
    placeholder = re.compile(r"NNNN|NN_|pNN")
    gone = sorted(n for n in named if not placeholder.search(n) and not (ROOT / n).exists())
    assert not gone, f"{page.name} names files that do not exist: {gone}"


@cache
def help_of(command: str) -> tuple[int, str]:
    """Exit code and output of `sparkserve COMMAND --help`; a process only where the command becomes another program."""
    if command in ("fixtures", "smoke"):
        argv = [sys.executable, "-m", "launch", command, "--help"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit) as e:
        cli.main([command, "--help"])
    return int(e.value.code or 0), out.getvalue()


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_every_sparkserve_command_in_the_docs_is_known_to_the_command(page):
    lines = [c for c in console(page.read_text()) if re.match(r"(?:\.venv/bin/)?sparkserve ", c)]
    for line in lines:
        words = line.split("sparkserve ", 1)[1].split()
        code, text = help_of(words[0])
        assert code == 0, f"{page.name}: {line}: {text.strip()}"
        for flag in (w.split("=")[0] for w in words[1:] if w.startswith("--")):
            assert flag in text, f"{page.name}: {line}: {flag} is not an option of {words[0]}"


@pytest.mark.engine
def test_the_first_command_gives_the_planted_answer():
    done = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    expected = re.search(r"```text\n(.*?)```", README, re.S)
    assert expected
    assert expected[1] in done.stdout


def _code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text) + console(text)


def test_every_cited_fact_is_in_the_sources():
    """A preset that says "facts 2.4" points at something a reader of this repository can open."""
    sources = (ROOT / "docs" / "sources.md").read_text()
    have = set(re.findall(r"^## facts ([\d.]+):", sources, re.M))
    gaps = sources.split("\n## gaps", 1)[1]
    files = [
        f
        for folder, kinds in {
            "launch": ("*.toml", "*.json", "*.py"),
            "docker": ("*.toml",),
            "smoke": ("*.py",),
        }.items()
        for kind in kinds
        for f in (ROOT / folder).rglob(kind)
    ]
    seen = 0
    for f in files:
        text = f.read_text()
        for list_ in re.findall(r"\bfacts(?:\.md)? ((?:\d(?:\.\d)?)(?:(?:, | and )\d(?:\.\d)?)*)\b", text):
            for number in re.findall(r"\d(?:\.\d)?", list_):
                seen += 1
                assert number in have, (
                    f"{f.relative_to(ROOT)} cites facts {number}: not a section of docs/sources.md"
                )
        for section in re.findall(r"upstream-gaps ([A-Z]\d*)", text):
            assert re.search(rf"^- \*\*[^*]*\b(?:{section}|{section[0]})\b[^*]*\*\*", gaps, re.M), (
                f"{f.relative_to(ROOT)} cites upstream-gaps {section}"
            )
    assert seen > 40, "the citations are not written as this test reads them"
