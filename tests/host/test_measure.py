"""Captured machines are measured as they are: tests/host/machines, each with a README that says where it is from."""

from pathlib import Path

import pytest

from launch.host.measure import measure
from launch.host.procfs import Earlyoom, Oomd, Pressure

MACHINES = Path(__file__).parent / "machines"
KIB = 1024
GIB = 1 << 30


def test_gb10_with_desktop_and_earlyoom():
    h = measure(MACHINES / "gb10-synthetic")
    assert h.memory is not None
    assert h.memory.total == 127601213 * KIB
    assert round(h.memory.total / GIB, 2) == 121.69
    assert h.available == h.memory.available == 106535321 * KIB
    assert h.memory.cached == (524288 + 41943040 + 2097152) * KIB
    assert h.memory.swap_used == 0
    assert h.pressure == {"some": Pressure(0.12, 0.04, 1234567), "full": Pressure(0.10, 0.03, 1000001)}
    assert h.cgroup is not None
    assert (h.cgroup.version, h.cgroup.limit, h.cgroup.headroom) == (2, None, None)
    assert h.min_free == 45056 * KIB
    assert h.earlyoom == Earlyoom(8.0, None, 10.0)
    assert h.earlyoom.floor_bytes(h.memory.total) == int(h.memory.total * 0.08)
    assert [(p.pid, p.name) for p in h.desktop] == [(1990, "Xorg"), (2201, "gnome-shell")]
    assert [p.name for p in h.killers] == ["earlyoom"]
    assert h.oomd is None
    assert "asimd" in h.cpu_flags
    assert (h.shm_total, h.shm_used) == (65332621312, 1048576)
    assert h.kernel == "6.14.0-1015-nvidia"
    assert h.problems == ()


def test_virtual_machine_with_cgroup_1():
    """Captured on the machine these tests were written on: cgroup v1 in a hybrid tree, no limit, no swap."""
    h = measure(MACHINES / "vm-x86-cgroup1")
    assert h.memory is not None
    assert h.memory.total == 24731708 * KIB
    assert h.memory.swap_total == 0
    assert h.cgroup is not None
    assert h.cgroup.version == 1
    assert h.available == h.memory.available
    assert {"avx2", "sse4_2"} <= h.cpu_flags
    assert "full" in h.pressure
    assert h.kernel.startswith("6.18")


def test_limit_of_cgroup_2_is_what_is_available():
    h = measure(MACHINES / "container-cgroup2")
    assert h.cgroup is not None
    assert (h.cgroup.limit, h.cgroup.current, h.cgroup.reclaimable) == (8 * GIB, 6 * GIB, 1 * GIB)
    assert h.available == h.cgroup.headroom == 3 * GIB


def test_limit_of_cgroup_1_is_found_at_the_mount():
    h = measure(MACHINES / "container-cgroup1")
    assert h.cgroup is not None
    assert (h.cgroup.version, h.available) == (1, 1 * GIB + GIB // 2)


def test_tightest_limit_on_the_way_up_counts(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "proc/self/mounts").write_text("cgroup2 /cg cgroup2 rw 0 0\n")
    for name, limit, used in (("outer", 10 * GIB, 9 * GIB), ("outer/inner", 8 * GIB, 1 * GIB)):
        (tmp_path / "cg" / name).mkdir(parents=True)
        (tmp_path / "cg" / name / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "cg" / name / "memory.current").write_text(f"{used}\n")
    h = measure(tmp_path)
    assert h.cgroup is not None
    assert (h.cgroup.limit, h.cgroup.headroom) == (10 * GIB, 1 * GIB)


def test_machine_deep_in_swap():
    h = measure(MACHINES / "swapping")
    assert h.memory is not None
    assert h.memory.swap_used == (8388604 - 1048576) * KIB
    assert h.pressure == {}
    assert h.cgroup is None
    assert [p.name for p in h.killers] == ["systemd-oomd"]
    assert h.oomd == Oomd(swap_percent=80.0, pressure_percent=60.0, pressure_seconds=20.0)
    assert h.earlyoom is None
    assert h.min_free is None


@pytest.mark.parametrize("name", ["garbage", "nothing-there"])
def test_garbage_gives_nothing_and_says_so(name):
    h = measure(MACHINES / name)
    assert (h.memory, h.available, h.cgroup, h.min_free, h.swappiness) == (None, None, None, None, None)
    assert h.pressure == {}
    assert h.cpu_flags == frozenset()
    assert "memory cannot be judged" in h.problems[0]
    assert (h.shm_total, h.shm_used) == (None, None)


def test_this_machine_can_be_measured():
    h = measure()
    assert h.memory is not None
    assert 0 < h.memory.available <= h.memory.total
    assert h.cpu_flags
