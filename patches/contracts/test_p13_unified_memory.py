"""P13: an integrated GPU gets defaults that leave the host its share; cgroup limits end what may be taken.

The device is a stand-in for torch's properties, the capacities are those of a GB10 (MemTotal 121.7 GiB) and of discrete
cards, and the cgroup is a folder of files. Nothing here ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.contracts import support

GIB = 1 << 30
GB10_MB = 121.7 * 1024
VISION = 0.9975  # what the engine keeps for the tiny model's vision tower, 0.95 * 1.05
Resolve = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch, tiny: support.TinyModels) -> Resolve:
    """The arguments as they are resolved on a card of `mb` MiB."""
    from sglang.srt.arg_groups import memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view

    path = tiny.target("bf16")

    def run(mb: float, *, integrated: bool, **fields: Any) -> Any:
        monkeypatch.setattr(memory_hook, "get_device_memory_capacity", lambda *_: mb)
        monkeypatch.setattr(memory_hook, "is_integrated_gpu", lambda _device: integrated, raising=False)
        fields.setdefault("mem_fraction_static", None)
        return resolving_view(support.publish_args(path, **fields))

    return run


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a cgroup tree of `files` and make the engine look there."""

    def make(membership: str, files: dict[str, str]) -> Path:
        from sglang.srt.arg_groups import memory_hook
        from sglang.srt.utils import common

        root, own = tmp_path / "cgroup", tmp_path / "membership"
        own.write_text(membership)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        limits = getattr(common, "cgroup_memory_limits", None)
        if limits is not None:  # the released engine has none, and must fail by what it answers
            there = partial(limits, str(root), str(own))
            monkeypatch.setattr(common, "cgroup_memory_limits", there)
            monkeypatch.setattr(memory_hook, "cgroup_memory_limits", there)
        return root

    return make


V2 = "0::/docker/abc\n"
V1 = "9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n"


def v2(limit: int | str, used: int, cache: int = 0, group: str = "docker/abc") -> dict[str, str]:
    prefix = f"{group}/" if group else ""
    return {
        f"{prefix}memory.max": f"{limit}\n",
        f"{prefix}memory.current": f"{used}\n",
        f"{prefix}memory.stat": f"anon 1\ninactive_file {cache}\nactive_file 7\n",
    }


def free_bytes(monkeypatch: pytest.MonkeyPatch, *, integrated: bool, available: int = 100 * GIB) -> int:
    """What the engine takes for free on device 0; the driver says 11 GiB."""
    import torch
    from sglang.srt.utils import common

    properties = SimpleNamespace(is_integrated=integrated)
    for name, value in {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (11 * GIB, 120 * GIB),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(common.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    return round(common.get_available_gpu_memory("cuda", 0, empty_cache=False) * GIB)


def test_gb10_leaves_the_host_a_fifth(resolve: Resolve) -> None:
    cfg = resolve(GB10_MB, integrated=True)
    assert 0.5 < cfg.mem_fraction_static <= 0.80
    assert cfg.cuda_graph_config.decode.max_bs == max(cfg.cuda_graph_config.decode.bs) == 32


def test_a_module_of_64_gib_keeps_16_for_the_host(resolve: Resolve) -> None:
    cfg = resolve(64 * 1024, integrated=True)
    assert cfg.mem_fraction_static == pytest.approx(0.75 * VISION)
    assert max(cfg.cuda_graph_config.decode.bs) == 32


def test_capacity_ends_at_the_cgroups_limit(resolve: Resolve, cgroup: Callable[..., Path]) -> None:
    """48 GiB of 121.7: the reserve and the class are those of the container, not of the machine."""
    cgroup(V2, v2(48 * GIB, GIB))
    cfg = resolve(GB10_MB, integrated=True)
    assert cfg.mem_fraction_static == pytest.approx(round(1 - 16 / 48, 3) * VISION)
    assert cfg.chunked_prefill_size == 4096


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        (V2, v2(40 * GIB, 10 * GIB), 30 * GIB),
        (V2, v2(40 * GIB, 30 * GIB, 25 * GIB), 35 * GIB),  # read weights lie in the page cache
        (V2, v2(40 * GIB, 41 * GIB), 0),
        ("0::/\n", v2(40 * GIB, 10 * GIB, group=""), 30 * GIB),  # a container with a namespace of its own
        (V2, v2(40 * GIB, 10 * GIB, group=""), 30 * GIB),  # and without: the path is the host's
        (V2, v2("max", 10 * GIB) | v2(20 * GIB, 12 * GIB, group="docker"), 8 * GIB),  # an ancestor's limit
        (
            V1,
            {
                "memory/docker/abc/memory.limit_in_bytes": f"{40 * GIB}\n",
                "memory/docker/abc/memory.usage_in_bytes": f"{15 * GIB}\n",
                "memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {5 * GIB}\n",
            },
            30 * GIB,
        ),
    ],
)
def test_free_memory_ends_at_the_cgroups_limit(
    monkeypatch: pytest.MonkeyPatch,
    cgroup: Callable[..., Path],
    membership: str,
    files: dict[str, str],
    free: int,
) -> None:
    cgroup(membership, files)
    assert free_bytes(monkeypatch, integrated=True) == free


@pytest.mark.parametrize(("says", "device", "expected"), [
    (True, "cuda", True), (False, "cuda", False), (True, "cpu", False), (True, None, False),
])  # fmt: skip
def test_torch_decides_what_is_integrated(
    monkeypatch: pytest.MonkeyPatch, says: bool, device: str | None, expected: bool
) -> None:
    import torch
    from sglang.srt.utils import common

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(is_integrated=says))
    assert common.is_integrated_gpu(device) is expected


# Captured from the released engine, same model and arguments: MiB to (chunk, largest graph, graphs, fraction).
DISCRETE = {
    16 * 1024: (2048, 8, 4, 0.7700699999999999),
    32 * 1024: (4096, 48, 10, 0.788025),
    48 * 1024: (4096, 32, 8, 0.8588475),
    80 * 1024: (8192, 256, 36, 0.8339099999999999),
    141 * 1024: (8192, 256, 36, 0.9047324999999999),
    180 * 1024: (16384, 512, 52, 0.8558549999999999),
}


@pytest.mark.guard
@pytest.mark.parametrize("mb", DISCRETE)
def test_discrete_cards_keep_their_defaults(resolve: Resolve, cgroup: Callable[..., Path], mb: int) -> None:
    cgroup(V2, v2(8 * GIB, GIB))  # concerns the host alone
    cfg = resolve(mb, integrated=False)
    decode = cfg.cuda_graph_config.decode
    assert (cfg.chunked_prefill_size, decode.max_bs, len(decode.bs), cfg.mem_fraction_static) == DISCRETE[mb]


@pytest.mark.guard
def test_explicit_values_stand_on_integrated_parts(resolve: Resolve) -> None:
    cfg = resolve(GB10_MB, integrated=True, mem_fraction_static=0.9, cuda_graph_max_bs_decode=64)
    assert cfg.mem_fraction_static == 0.9
    assert max(cfg.cuda_graph_config.decode.bs) == 64


@pytest.mark.guard
def test_free_memory_of_a_discrete_card_is_the_drivers(
    monkeypatch: pytest.MonkeyPatch, cgroup: Callable[..., Path]
) -> None:
    cgroup(V2, v2(4 * GIB, GIB))
    assert free_bytes(monkeypatch, integrated=False) == 11 * GIB


@pytest.mark.guard
@pytest.mark.parametrize("files", [{}, v2("max", GIB), v2("garbage", GIB), {"docker/abc/memory.max": "9\n"}])
def test_without_a_limit_free_memory_is_the_hosts(
    monkeypatch: pytest.MonkeyPatch, cgroup: Callable[..., Path], files: dict[str, str]
) -> None:
    cgroup(V2, files)
    assert free_bytes(monkeypatch, integrated=True) == 100 * GIB
