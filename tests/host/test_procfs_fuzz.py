"""Parsers meet anything: they never raise, and what they return stands in the text."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launch.host import procfs

KNOWN = """\
MemTotal:  100 kB
MemAvailable: 90 kB
MemAvailable: 900 kB
SwapTotal: 5 kB
SwapFree: 9 kB
some avg10=0.00 avg60=1.00 avg300=0.00 total=17
full avg10=. avg60=. avg300=. total=1
4:memory:/a/b
0::/x
cgroup2 /cg cgroup2 rw 0 0
cgroup /m cgroup rw,memory 0 0
inactive_file 12
flags : avx avx2
²
-1
max
9223372036854771712""".splitlines()
LINES = st.sampled_from([*KNOWN, "9" * 5000])
TEXT = st.one_of(st.text(), st.lists(st.one_of(LINES, st.text(max_size=30)), max_size=12).map("\n".join))


@given(TEXT)
@example("MemTotal: 100 kB\nMemAvailable: ١٢ kB")
def test_meminfo(text):
    m = procfs.parse_meminfo(text)
    if m is None:
        return
    assert 0 <= m.available <= m.total
    assert 0 <= m.free <= m.total
    assert 0 <= m.swap_used <= m.swap_total
    for figure in (m.total, m.available):
        assert re.search(rf"(?<!\d)0*{figure // 1024}(?!\d)", text)


@given(TEXT)
def test_pressure(text):
    for p in procfs.parse_pressure(text).values():
        assert str(p.total_us) in text
        assert p.avg10 >= 0


@given(TEXT)
@example("²")
@example("9" * 5000)
@example("9223372036854771712")
def test_limit_and_int(text):
    limit = procfs.parse_limit(text)
    assert limit is None or (0 <= limit < procfs.UNLIMITED_V1 and str(limit) in text)
    number = procfs.parse_int(text)
    assert number is None or str(abs(number)) in text


@given(TEXT, TEXT)
def test_cgroup(cgroup, mounts):
    found = procfs.parse_cgroup(cgroup, mounts)
    if found is not None:
        assert found.mount in mounts
        assert found.path in cgroup


@given(TEXT)
def test_stat_and_flags(text):
    for name, value in procfs.parse_stat(text).items():
        assert name in text
        assert str(value) in text
    assert all(f in text for f in procfs.parse_cpu_flags(text))


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["-m", "-M", "-s", "-mnan", "-Minf", "-m5,2", "1e999"])))
)
def test_earlyoom(argv):
    e = procfs.parse_earlyoom(["earlyoom", *argv])
    assert e.floor_bytes(1 << 37) >= 0
    assert e.swap_percent >= 0


@pytest.mark.parametrize(
    ("argv", "floor"),
    [
        ([], 1000),
        (["-m", "5"], 500),
        (["-m5,2"], 500),
        (["-M", "2,1"], 2048),
        (["-M", "2", "-m", "50"], 2048),
        (["-m", "nonsense"], 1000),
        (["-m"], 1000),
    ],
)
def test_earlyoom_floor(argv, floor):
    assert procfs.parse_earlyoom(["/usr/bin/earlyoom", *argv]).floor_bytes(10000) == floor


@given(st.lists(TEXT, max_size=3))
@example(["SwapUsedLimit=900‰\nDefaultMemoryPressureDurationSec=2min"])
@example(["SwapUsedLimit=٣%"])
def test_oomd(texts):
    found = procfs.parse_oomd(texts)
    assert min(found.swap_percent, found.pressure_percent, found.pressure_seconds) >= 0
    if "=" not in "".join(texts):
        assert found == procfs.Oomd()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", procfs.Oomd(90.0, 60.0, 30.0)),
        ("SwapUsedLimit=900‰\nDefaultMemoryPressureDurationSec=2min", procfs.Oomd(90.0, 60.0, 120.0)),
        ("DefaultMemoryPressureLimit=4%\nDefaultMemoryPressureLimit=50%", procfs.Oomd(90.0, 50.0, 30.0)),
        ("# SwapUsedLimit=5%\nOther=1%", procfs.Oomd()),
    ],
)
def test_oomd_thresholds(text, want):
    assert procfs.parse_oomd([text]) == want
