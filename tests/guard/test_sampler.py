"""The sampler on captured machines and on a kernel log of our own."""

import shutil
from pathlib import Path

import pytest

from launch.guard.sampler import DRIVER_OUT_OF_MEMORY, Sampler

MACHINES = Path(__file__).resolve().parents[1] / "host" / "machines"
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    def copy(name):
        shutil.copytree(MACHINES / name, tmp_path / name)
        return tmp_path / name

    return copy


def test_figures_are_read_anew_each_time(machine):
    root = machine("swapping")
    sampler = Sampler(root)
    first = sampler.sample()
    assert (first.available, first.swap_used, first.full_us) == (
        420000 * 1024,
        (8388604 - 1048576) * 1024,
        None,
    )
    text = (root / "proc/meminfo").read_text().replace("420000", "410000")
    (root / "proc/meminfo").write_text(text)  # the same file: the handle stays good
    assert sampler.sample().available == 410000 * 1024
    sampler.close()


def test_pressure_is_the_running_total(machine):
    assert Sampler(machine("gb10-synthetic")).sample().full_us == 1000001


@pytest.mark.parametrize(
    ("name", "want"), [("container-cgroup2", 3 * GIB), ("container-cgroup1", 3 * GIB // 2)]
)
def test_limit_of_the_cgroup_counts(machine, name, want):
    assert Sampler(machine(name)).sample().available == want


def test_cgroup_is_read_anew_each_time(machine):
    root = machine("container-cgroup2")
    sampler = Sampler(root)
    (root / "sys/fs/cgroup/memory.current").write_text(f"{8 * GIB}\n")
    assert sampler.sample().available == GIB


def test_garbage_is_none_not_plenty(machine):
    assert Sampler(machine("garbage")).sample() is None


def test_kernel_log_from_now_on(machine):
    root = machine("gb10-synthetic")
    log = root / "dev/kmsg"
    log.write_text("4,1,1,-;NVRM: old: Out of memory [NV_ERR_NO_MEMORY]\n")
    sampler = Sampler(root)
    assert sampler.sees_kernel_log
    assert sampler.sample().driver_lines == ()
    with log.open("a") as f:
        f.write(
            "4,2,2,-;usb 1-1: new device\n4,3,3,-;NVRM: GPU0 nvAssert: Out of memory [NV_ERR_NO_MEMORY]\n"
        )
    lines = sampler.sample().driver_lines
    assert len(lines) == 1
    assert "NV_ERR_NO_MEMORY" in lines[0]
    assert sampler.sample().driver_lines == ()
    sampler.close()


def test_without_a_kernel_log_it_says_so(machine):
    sampler = Sampler(machine("swapping"))
    assert not sampler.sees_kernel_log
    assert sampler.sample().driver_lines == ()


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)", True),
        ("NVRM: GPU at PCI:000f:01:00: out of memory", True),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module", False),
        ("Out of memory: Killed process 1234 (python)", False),
    ],
)
def test_driver_lines(line, hit):
    assert bool(DRIVER_OUT_OF_MEMORY.search(line)) is hit


def test_handles_are_closed(machine):
    root = machine("gb10-synthetic")
    before = len(list(Path("/proc/self/fd").iterdir()))
    sampler = Sampler(root)
    sampler.sample()
    sampler.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
