"""`sparkserve lint-flags`: what community command lines become on the pinned engine."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from launch import cli
from launch.errors import UsageError
from launch.flags import load_flags
from launch.lint import Report, lint
from launch.removed_flags import REMOVED

START = "python -m sglang.launch_server --model-path m "


def said(report: Report, flag: str) -> list[tuple[str, str]]:
    return [(f.level, f.text) for f in report.findings if f.flag == flag]


def test_every_removed_flag_becomes_valid_words_or_nothing() -> None:
    flags = load_flags()
    assert len(REMOVED) == 27
    assert not set(REMOVED) & set(flags.by_name)
    for name, removed in REMOVED.items():
        assert removed.flag is None or removed.flag in flags.by_name, name
        value = ""
        if removed.takes_value:
            target = flags.by_name[removed.flag] if removed.flag else None
            options = list(removed.values or (target.choices if target and target.choices else ["8"]))
            value = str(options[0])
        report = lint(f"{START}{name} {value}")
        levels = [f.level for f in report.findings if f.flag == name]
        assert levels == ["change"], name
        if name != "--speculative-dflash-draft-window-size":  # renamed, and harmful
            assert report.errors == 0, (name, report.findings)
        if removed.flag and removed.value:
            assert report.argv[-2:] == [removed.flag, removed.value]


def test_renamed_values_are_renamed() -> None:
    assert lint(START + "--prefill-cp-mode in-seq-split").argv[-2:] == ["--cp-strategy", "zigzag"]


@pytest.mark.parametrize(
    "line",
    [
        "sglang serve --model-path m --mem-fraction-static 0.5",
        "python3 -m sglang.launch_server --model-path m --mem-fraction-static 0.5",
        "HF_HOME=/x python3 -m sglang.launch_server \\\n  --model-path m \\\n  --mem-fraction-static 0.5 # half",
        "docker run --rm -it --gpus all -v a:b -p 30000:30000 img sglang serve --model-path m --mem-fraction-static 0.5",
        "sudo docker run --gpus=all img python3 -m sglang.launch_server --model-path=m --mem_fraction_static=0.5",
        "docker run --gpus all img bash -c 'sglang serve --model-path m --mem-fraction-static 0.5'",
        "docker run --gpus all img --model-path m --mem-fraction-static 0.5",
        "--model-path m --mem-fraction-static 0.5 > log 2>&1 &",
    ],
)
def test_the_ways_people_start_it(line: str) -> None:
    report = lint(line)
    assert report.argv == ["--model-path", "m", "--mem-fraction-static", "0.5"]
    assert report.errors == 0


@pytest.mark.parametrize(
    ("words", "flag", "level", "text"),
    [
        ("--kv-cache-dtyp fp8_e4m3", "--kv-cache-dtyp", "change", "abbreviation"),
        ("--max-runing-requests 4", "--max-runing-requests", "error", "nearest: --max-running-requests"),
        ("--cuda-graph-max 4", "--cuda-graph-max", "error", "--cuda-graph-max-bs-decode"),
        ("--kv-cache-dtype fp8_e4", "--kv-cache-dtype", "error", "nearest: fp8_e4m3"),
        ("--kv-cache-dtype nvfp4", "--kv-cache-dtype nvfp4", "error", "fp8_e4m3"),
        ("--max-running-requests many", "--max-running-requests", "error", "takes a number"),
        ("--max-running-requests", "--max-running-requests", "error", "needs a value"),
        ("--enable-metrics yes", "--enable-metrics", "error", "takes no value"),
        ("--page-size 1 2", "--page-size", "error", "takes one value"),
        (
            "--speculative-draft-window-size 8",
            "--speculative-draft-window-size",
            "error",
            "kills the scheduler",
        ),
        ("--speculative-dflash-draft-window-size 8", "--speculative-draft-window-size", "error", "kills"),
        ("--quantization modelopt_mixed", "--quantization", "change", "leave it out"),
        ("--quantization fp8", "--quantization", "note", "inherits"),
        ("--disable-cuda-graph", "--disable-cuda-graph", "warning", "deprecated"),
        ("--host 0.0.0.0", "--host 0.0.0.0", "warning", "everywhere"),
        ("--mem-fraction-static 0.95", "--mem-fraction-static 0.95", "warning", "unified memory"),
        ("--model m", "--model", "change", "--model-path"),
        ("--speculative-draft-model-path d", "--speculative-draft-model-path", "warning", "unquant"),
    ],
)
def test_findings(words: str, flag: str, level: str, text: str) -> None:
    found = said(lint(START + words), flag)
    assert any(lvl == level and text in t for lvl, t in found), found


def test_harmful_and_unknown_flags_are_left_out_of_the_translation() -> None:
    report = lint(
        START + "--speculative-draft-window-size 8 --nonsense 3 --quantization modelopt --page-size 1"
    )
    assert report.argv == ["--model-path", "m", "--page-size", "1"]


def test_docker_remarks() -> None:
    report = lint(
        "docker run --privileged --memory 100g --shm-size=64g --restart always -e HF_TOKEN=hunter2 -e A=b img "
        "sglang serve --model-path m"
    )
    assert {f.flag for f in report.findings} == {
        "--privileged", "--memory", "--shm-size 64g", "--restart always", "-e HF_TOKEN",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["", "docker run img", "hello world", "sglang serve '", "python x.py"])
def test_what_is_no_command_line_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        lint(line)


@given(
    st.text(
        alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"\\#"), min_size=6
    )
)
def test_a_secret_is_never_repeated(secret: str) -> None:
    assume(secret not in START)
    for line in (f"{START}--api-key {shlex.quote(secret)}", f"{START}--admin-api-key={secret}"):
        report = lint(line)
        shown = json.dumps([[f.flag, f.text] for f in report.findings]) + report.command()
        assert report.errors >= 1
        assert secret not in report.argv
        assert f" {secret} " not in f" {shown} "


@given(st.text())
def test_any_text_is_translated_or_refused(text: str) -> None:
    try:
        report = lint(text)
    except UsageError:
        return
    assert all(f.text for f in report.findings)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def run(line: str, *args: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as e:
            cli.main(["lint-flags", line, *args])
        return int(e.value.code or 0), capsys.readouterr().out

    code, out = run(START + "--cuda-graph-max-bs 8")
    assert code == 0
    assert out.splitlines()[-1].endswith("--cuda-graph-max-bs-decode 8")
    code, out = run(START + "--nonsense", "--json")
    assert code == 1
    assert json.loads(out)["errors"] == 1
    assert run("not a command")[0] == 2
    code, out = run("--tp 2 --nonsense", "--json")
    assert code == 1
    assert json.loads(out)["argv"][-2:] == ["--tp-size", "2"]
