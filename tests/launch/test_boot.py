"""Reading the engine's log: phases and causes."""

from __future__ import annotations

import pytest

from launch import boot

TRACE = """[2026-11-30 12:00:00] server_args={'model_path': 'x'}
[2026-11-30 12:00:09] Load weight begin. avail mem=90.00 GB
[2026-11-30 12:00:10] Scheduler hit an exception: Traceback (most recent call last):
  File "a.py", line 1, in load
KeyError: 'lm_head.weight_scale'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in run
ValueError: lm_head has no weight_scale
[2026-11-30 12:00:10] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: NCCL peer went away
[2026-11-30 12:00:11] Received sigquit from a child process. It usually means the child failed.
EOFError
""".splitlines()


def test_the_first_schedulers_error_counts_and_the_end_of_its_chain() -> None:
    assert boot.cause(TRACE) == "ValueError: lm_head has no weight_scale"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            ["usage: x", "launch_server.py: error: unrecognized arguments: --foo"],
            "unrecognized arguments: --foo",
        ),
        (["/usr/bin/python3: No module named sglang"], "No module named sglang"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"], "CUDA out of memory"),
        (["Traceback", "ValueError: first", "more", "AssertionError: draft"], "AssertionError: draft"),
        (["NVRM: NV_ERR_NO_MEMORY at x.c"], "NV_ERR_NO_MEMORY"),
        (["AssertionError"], "AssertionError"),
    ],
)
def test_causes(lines: list[str], cause: str) -> None:
    assert cause in (boot.cause(lines) or "")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["all is well"],
        ["[t] Ignore import error when loading sglang.srt.models.x: no module y"],
        ["KeyboardInterrupt"],
        ["x.py:1: DeprecationWarning: old"],
        ["[t] Received sigquit from a child process. It usually means the child failed."],
    ],
)
def test_what_is_no_cause(lines: list[str]) -> None:
    assert boot.cause(lines) is None


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[t] Load weight begin. avail mem=1 GB", "loading weights"),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
            "loading weights, 50 %",
        ),
        ("[t] Capture target verify CUDA graph begin. backend=full", "capturing CUDA graphs (target verify)"),
        (
            "[t] max_total_num_tokens=16384, chunked_prefill_size=2048",
            "scheduler up, 16384 tokens of KV cache",
        ),
        ("[t] The server is fired up and ready to roll!", "engine says ready; asking it for a token"),
        ("[t] Decode batch. #running-req: 1", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    assert boot.phase(line) == phase


@pytest.mark.parametrize(
    ("code", "text"), [(-9, "out-of-memory"), (137, "out-of-memory"), (-15, "earlyoom"), (143, "earlyoom"),
                       (-11, "segmentation"), (-4, "AVX"), (0, "exit code 0"), (3, "exit code 3"), (-64, "signal 64")]
)  # fmt: skip
def test_endings(code: int, text: str) -> None:
    assert text in boot.ending(code).text


def test_redaction() -> None:
    assert boot.redact("key=abc, abc", ["abc", ""]) == "key=***, ***"
