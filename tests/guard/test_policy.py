"""The guard's rules as tables: samples in, the first trip out."""

import pytest

from launch.guard.policy import GIB, MIB, Guard, Limits, Sample

LIM = Limits(floor=4 * GIB, floor_s=2.0, swap_growth=2 * GIB, full_percent=20.0, full_s=5.0)
PLENTY = 50 * GIB


def feed(samples, limits=LIM):
    """(index, reason) of the first trip, or None."""
    guard = Guard(limits)
    for i, s in enumerate(samples):
        trip = guard.observe(s)
        if trip is not None:
            return i, trip.reason
    return None


def memory(*available, step=0.5):
    return [Sample(i * step, a) for i, a in enumerate(available)]


LOW, HALF = 3 * GIB, 2 * GIB - 1


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        (memory(*[PLENTY] * 100), None),
        (memory(4 * GIB, 4 * GIB, 4 * GIB, 4 * GIB, 4 * GIB, 4 * GIB), None),  # at the floor is not below it
        (memory(LOW, LOW, LOW, LOW), None),  # 1.5 s
        (memory(LOW, LOW, LOW, LOW, LOW), (4, "floor")),  # 2.0 s
        (memory(LOW, LOW, LOW, PLENTY, LOW, LOW, LOW, LOW), None),  # recovery starts the clock again
        (memory(PLENTY, HALF), (1, "floor")),  # below half: at once
        (memory(PLENTY, 2 * GIB), None),  # exactly half is not below half
        (memory(HALF), (0, "floor")),  # even the first sample
    ],
)
def test_floor(samples, want):
    assert feed(samples) == want


@pytest.mark.parametrize(
    ("swap", "want"),
    [
        ([0, GIB, 2 * GIB], None),
        ([0, GIB, 2 * GIB + 1], (2, "swap")),
        ([7 * GIB] * 10, None),  # swap of others, from before
        ([7 * GIB, 1 * GIB, 3 * GIB, 3 * GIB + 1], (3, "swap")),  # counted from its lowest
    ],
)
def test_swap(swap, want):
    assert feed([Sample(i * 0.5, PLENTY, swap_used=u) for i, u in enumerate(swap)]) == want


def stalls(*percent):
    """One sample per half second; `percent` of each half second everything stood still."""
    total, out = 10_000_000, [Sample(0.0, PLENTY, full_us=10_000_000)]
    for i, p in enumerate(percent):
        total += int(500_000 * p / 100)
        out.append(Sample((i + 1) * 0.5, PLENTY, full_us=total))
    return out


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        (stalls(*[0] * 40), None),
        (stalls(*[19] * 40), None),
        (stalls(*[25] * 10), (10, "pressure")),
        (stalls(*[100] * 9), None),  # not yet a whole window
        (stalls(*[100] * 10), (10, "pressure")),
        (stalls(*[0] * 20, 100, 100, *[0] * 20), None),  # one second of ten half seconds is exactly 20 %
        (stalls(*[0] * 20, 100, 100, 100), (23, "pressure")),
        ([Sample(i * 0.5, PLENTY, full_us=None) for i in range(40)], None),  # a kernel without PSI
    ],
)
def test_pressure(samples, want):
    assert feed(samples) == want


def test_driver_line_trips_at_once_and_is_quoted():
    guard = Guard(LIM)
    line = "NVRM: nvAssertOkFailedNoLog: Out of memory [NV_ERR_NO_MEMORY]"
    trip = guard.observe(Sample(0.0, PLENTY, driver_lines=("first", line)))
    assert trip is not None
    assert trip.reason == "driver"
    assert line in trip.detail


def test_trips_once_and_keeps_the_low_water_mark():
    guard = Guard(LIM)
    assert guard.observe(Sample(0.0, HALF)) is not None
    assert guard.observe(Sample(0.5, MIB)) is None
    assert (guard.low_water, guard.samples) == (MIB, 2)


@pytest.mark.parametrize(
    ("total", "floor"),
    [(int(121.69 * GIB), int(121.69 * GIB) * 3 // 100), (8 * GIB, 512 * MIB), (500 * GIB, 4 * GIB)],
)
def test_default_floor(total, floor):
    assert Limits.default(total).floor == floor
