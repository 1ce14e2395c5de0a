"""Machine classes from the texts that drivers and kernels print."""

from __future__ import annotations

import pytest

from launch import machine
from launch.errors import ConfigError, UsageError
from launch.machine import GIB, Gpu, classify, parse_meminfo, parse_proc_gpu, parse_smi

# Answers to our nvidia-smi query and MemTotal in kB. The GB10's are as its owners quote them in public reports
# (no memory figure; 127,601,388 kB); the others follow the same format.
SMI = {
    "gb10-128": ("NVIDIA GB10, 12.1, [N/A], 580.159.03\n", 127_601_388),
    "gb10-64": ("NVIDIA GB10, 12.1, [N/A], 580.95.05\n", 63_500_000),
    "rtx-pro-6000": (
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, 12.0, 97887, 580.95.05\n",
        1 << 27,
    ),
    "rtx-5090": ("NVIDIA GeForce RTX 5090, 12.0, 32607, 580.95.05\n", 1 << 26),
    "h200": ("NVIDIA H200, 9.0, 143771, 570.124.06\n", 1 << 28),
}


@pytest.mark.parametrize("name", SMI)
def test_class_from_smi_and_meminfo(name: str) -> None:
    smi, kib = SMI[name]
    total = parse_meminfo(f"MemTotal:       {kib} kB\nMemFree:  1 kB\n")
    assert total == kib * 1024
    assert classify(parse_smi(smi), total) == name


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("No devices were found\n", 0),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 0),
        ("Unable to determine the device handle for GPU0: Unknown Error\n", 0),
        ("NVIDIA H200, 9.0, 143771, 570.124.06\n" * 2, 2),
        ("NVIDIA GB10, [Not Supported], [N/A], [Unknown Error]\n", 1),
        ("a, b, c, d, e\n", 0),
    ],
)
def test_smi_texts_of_all_kinds(text: str, count: int) -> None:
    gpus = parse_smi(text)
    assert len(gpus) == count
    for gpu in gpus:
        assert gpu.memory_bytes is None or gpu.memory_bytes > GIB


def test_fields_that_say_nothing_are_none() -> None:
    assert parse_smi("NVIDIA GB10, [Not Supported], [N/A], [Unknown Error]\n") == (
        Gpu("NVIDIA GB10", None, None, None),
    )


def test_proc_names_the_gpu_where_smi_is_missing() -> None:
    text = "Model: \t\t NVIDIA GB10\nIRQ:   \t\t 123\nGPU UUID: \t GPU-1\n"
    assert parse_proc_gpu(text) == Gpu("NVIDIA GB10", None, None, None)
    assert parse_proc_gpu("nothing") is None


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA GeForce RTX 5090 D", "NVIDIA A100"]
)
def test_a_gpu_without_a_class_is_not_guessed(name: str) -> None:
    assert classify((Gpu(name, "12.0", GIB, None),), 64 * GIB) is None


def test_no_gpu_is_the_cpu_class() -> None:
    assert classify((), 64 * GIB) == "cpu"


def test_detect_refuses_an_unknown_gpu_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_gpus", lambda: ((Gpu("NVIDIA A100", "8.0", GIB, None),), "nvidia-smi"))
    with pytest.raises(ConfigError, match=r"NVIDIA A100; choose the closest with --machine \(gb10-128"):
        machine.detect()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ["a", "b"]),
        ("1", ["b"]),
        ("1,0", ["b", "a"]),
        ("", []),
        ("-1", []),
        ("7", []),
        ("GPU-1", ["a", "b"]),
    ],
)
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, value: str | None, names: list[str]) -> None:
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    gpus = (Gpu("a", None, None, None), Gpu("b", None, None, None))
    assert [g.name for g in machine._visible(gpus)] == names


def test_unknown_class_lists_them() -> None:
    with pytest.raises(UsageError, match="gb10-128, gb10-64"):
        machine.by_name("gb300")


def test_the_cpu_class_agrees_with_the_cpu_engine() -> None:
    """Two places know how the CPU engine is started; `launch` may not import the other."""
    from launch.flags import load_flags
    from launch.registry import Registry
    from launch.render import render_flag
    from launch.resolve import resolve
    from smoke.cpu_engine import env

    resolved = resolve(Registry().load("tiny-w4a4-dflash2"), "cpu")
    assert {k: resolved.env.get(k) for k in env.ENV} == env.ENV
    words: list[str] = []
    for key, value in resolved.engine.items():
        words += render_flag(load_flags().by_key[key], value)
    theirs = [*env.ARGS, *env.HYBRID_ARGS]
    for i, word in enumerate(theirs):
        if word.startswith("--"):
            assert word in words
            if i + 1 < len(theirs) and not theirs[i + 1].startswith("--"):
                assert words[words.index(word) + 1] == theirs[i + 1]
