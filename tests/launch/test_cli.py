"""The command itself: nothing heavy is imported, data comes as JSON, mistakes are one line."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.cli import app, main
from launch.errors import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*args: str) -> Done:
    """The command in this process: what it prints and the code it would leave with."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(list(args))
    assert isinstance(end.value.code, int)
    return Done(end.value.code, out.getvalue(), err.getvalue())


def test_print_imports_nothing_heavy() -> None:
    argv = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "launch",
        "serve",
        "tiny-w4a4-dflash2",
        "--machine",
        "cpu",
        "--print",
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    heavy = {
        "torch",
        "sglang",
        "numpy",
        "rich",
        "httpx",
        "huggingface_hub",
        "transformers",
        "openai",
        "asyncio",
    }
    assert loaded & heavy == set()
    assert "launch.render" in loaded


def test_no_module_of_launch_imports_the_engine() -> None:
    code = (
        "import importlib, pkgutil, sys, launch\n"
        "names = [m.name for m in pkgutil.iter_modules(launch.__path__, 'launch.')]\n"
        "[importlib.import_module(n) for n in names if n not in ('launch.__main__', 'launch._argparse_dump')]\n"
        "print(sorted({'torch', 'sglang', 'smoke'} & set(sys.modules)), len(names))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, count = done.stdout.rsplit(" ", 1)
    assert heavy == "[]"
    assert int(count) > 15


def test_print_json_is_the_same_command() -> None:
    text = run("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print").stdout
    data = json.loads(run("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print", "--json").stdout)
    assert data["argv"][1:3] == ["-m", "sglang.launch_server"]
    assert all(word in text for word in data["argv"])
    assert data["env"]["SGLANG_USE_CPU_ENGINE"] == "1"
    assert data["unset"] == ["PYTHONDONTWRITEBYTECODE"]


def test_the_printed_text_is_a_shell_script() -> None:
    text = run("serve", "qwen3.8-27b-nvfp4-dflash2-524k", "--machine", "gb10-128", "--print").stdout
    script = text.replace(sys.executable + " -m", "printf '%s\\n' -m")
    words = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert json.loads(words[words.index("--json-model-override-args") + 1])["text_config"]["rope_parameters"]


def test_without_a_gpu_the_fixture_is_the_default_and_it_says_so(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = run("serve", "--print")
    assert done.returncode == 0
    assert "no GPU found: serving the fixture tiny-w4a4-dflash2" in done.stderr
    assert "qwen38-w4a4" in done.stdout
    wrong = run("serve", "qwen3.8-27b-nvfp4-dflash2", "--print")
    assert wrong.returncode == 2
    assert "needs a GPU" in wrong.stderr


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("serve", "tiny-w4a4-dflash", "--print"), 2, "nearest: tiny-w4a4-dflash"),
        (("serve", "tiny-w4a4-dflash2", "--machine", "gb300", "--print"), 2, "known: gb10-128"),
        (("serve", "tiny-w4a4-dflash2", "--machine", "rtx-5090", "--print"), 2, "supports cpu, h200"),
        (("serve", "unsloth-qwen3.8-27b-nvfp4", "--machine", "gb10-128", "--print"), 78, "sglang#34895"),
        (("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print", "--set", "x"), 2, "key=value"),
        (
            ("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print", "--set", "page_sise=1"),
            78,
            "page_size",
        ),
        (("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print", "--set", "=3"), 2, "key=value"),
        *(
            (("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print", "--set", word), 78, text)
            for word, text in (
                ("mem_fraction_static=7", "between 0 and 1, not 7"),
                ("mem_fraction_static=nan", "between 0 and 1, not nan"),
                ("mem_fraction_static=0", "between 0 and 1, not 0"),
                ("max_running_requests=0", "at least 1 request"),
            )
        ),
        (("serve", "--port", "0"), 2, "--port"),
        (("serve", "--bogus"), 2, "--bogus"),
        (("serv",), 2, "serv"),
        (("show", "nothing-like-it"), 2, "sparkserve presets"),
        (("presets", "--machine", "gb300"), 2, "gb300"),
    ],
)
def test_mistakes_are_one_line_with_their_exit_code(args: tuple[str, ...], code: int, text: str) -> None:
    done = run(*args)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.stderr


def test_set_changes_one_flag_and_says_that_reports_no_longer_apply() -> None:
    args = ("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print")
    plain = run(*args).stdout
    done = run(*args, "--set", "context-length=2048", "--set", "log_level=debug")
    assert "changed by hand" in done.stderr
    changed = plain.replace("--context-length 4096", "--context-length 2048")
    assert set(done.stdout.splitlines()) - set(changed.splitlines()) == {"  --log-level debug \\"}


def test_presets_and_show_as_data() -> None:
    data = json.loads(run("presets", "--json", "--machine", "cpu").stdout)
    assert {p["name"] for p in data} == {p["name"] for p in data if "cpu" in p["machines"]}
    assert {"tiny-w4a4-dflash2", "tiny-w4a16-dflash2"} <= {p["name"] for p in data}
    assert "unsloth-qwen3.8-27b-nvfp4" not in run("presets").stdout
    assert "unsloth-qwen3.8-27b-nvfp4" in run("presets", "--all").stdout
    shown = json.loads(run("show", "qwen3.8-27b-nvfp4-dflash2", "--json").stdout)
    assert len(shown["digest"]) == 64
    assert shown["target"]["revision"] == "52d1adc5f38aa5ebf099c29ed7025ba34cfbb854"
    text = run("show", "qwen3.8-27b-nvfp4-dflash2", "--machine", "rtx-pro-6000").stdout
    assert "mem_fraction_static = 0.85" in text
    assert "engine on gb10-128" not in text
    why = run("show", "unsloth-qwen3.8-27b-nvfp4").stdout
    assert "sglang#34895" in why


def test_schema_and_version() -> None:
    assert json.loads(run("schema").stdout)["title"] == "SparkServe preset"
    assert json.loads(run("version", "--json").stdout)["sglang"] == "0.5.23"


def test_the_engines_interpreter_can_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSERVE_ENGINE_PYTHON", "/opt/e/python")
    done = run("serve", "tiny-w4a4-dflash2", "--machine", "cpu", "--print")
    assert "\n/opt/e/python -m sglang.launch_server" in done.stdout


def test_other_parts_are_run_not_imported() -> None:
    argv = [sys.executable, "-m", "launch", "fixtures", "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "usage" in done.stdout.lower()


def test_the_documented_exit_codes_are_the_ones_in_use() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert {int(code): text for code, text in rows.items()} == EXIT_CODES


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"`{name}" in page, name


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["render", "tiny-w4a4-dflash2"],
            "render 'tiny-w4a4-dflash2': say first what to print (compose or systemd)",
        ),
        (["render", "compos", "tiny-w4a4-dflash2"], "render 'compos': say first what to print"),
        (["render", "compose"], "Missing argument 'preset'. (sparkserve render --help)"),
        (["run", "--bogus", "x"], "No such option: --bogus (sparkserve run --help)"),
    ],
)
def test_a_wrong_line_is_answered_by_the_command_it_was_for(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        main(argv)
    assert e.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1
