"""When to stop the server: a pure state machine over memory samples.

On a unified-memory machine the driver answers an allocation that does not fit by stalling the whole host (pains.md 1), and a
container limit does not contain it (pains.md 2). So the guard looks at the host's own figures and trips early, for one
of four reasons:

* `floor`     MemAvailable stayed below the floor for `floor_s` seconds, or once below half of it;
* `swap`      swap in use grew by more than `swap_growth` bytes since the server was ready or since its lowest;
* `pressure`  every task was stalled on memory for more than `full_percent` of the last `full_s` seconds (PSI `full`);
* `driver`    the kernel log says that the NVIDIA driver could not get memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bytes and seconds; `default` derives them from the machine's size."""

    floor: int
    floor_s: float = 2.0
    swap_growth: int = 2 * GIB
    full_percent: float = 20.0
    full_s: float = 5.0

    @classmethod
    def default(cls, total: int) -> Limits:
        """3 % of memory, at least 512 MiB and at most 4 GiB: 3.65 GiB of a GB10's 121.7 GiB.

        The kernel starts to reclaim and stall well above its own min_free watermark; a graph capture or one prefill
        chunk takes hundreds of MiB between two samples, so half the floor trips at once.
        """
        return cls(floor=min(4 * GIB, max(512 * MIB, total * 3 // 100)))


def limits_from(environ: Mapping[str, str], total: int) -> Limits:
    """The defaults for the machine; SPARK_FLOOR_BYTES moves the floor. ValueError names a bad value."""
    limits = Limits.default(total)
    raw = environ.get("SPARK_FLOOR_BYTES")
    if raw is None:
        return limits
    if not re.fullmatch("[0-9]{1,18}", raw) or int(raw) >= total:
        raise ValueError(f"SPARK_FLOOR_BYTES={raw}: give bytes below the machine's {total}")
    return Limits(floor=int(raw))


@dataclass(frozen=True)
class Sample:
    """One look at the machine. `t` in seconds of a monotonic clock, sizes in bytes, `full_us` PSI's running total."""

    t: float
    available: int
    swap_used: int = 0
    full_us: int | None = None
    driver_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trip:
    """Why the server has to stop, in a sentence with the figures."""

    reason: str
    detail: str


@dataclass
class Guard:
    """Feed it samples in order; it answers with a `Trip` once, and keeps the low-water mark."""

    limits: Limits
    low_water: int | None = None
    samples: int = 0
    tripped: Trip | None = None
    _below_since: float | None = None
    _swap_base: int | None = None
    _stalls: deque[tuple[float, int]] = field(default_factory=deque)

    def observe(self, s: Sample) -> Trip | None:
        """The trip this sample causes, or None. After a trip always None: there is only one."""
        self.samples += 1
        self.low_water = s.available if self.low_water is None else min(self.low_water, s.available)
        trip = self._floor(s) or self._driver(s) or self._swap(s) or self._pressure(s)
        if trip is None or self.tripped is not None:
            return None
        self.tripped = trip
        return trip

    def _floor(self, s: Sample) -> Trip | None:
        lim = self.limits
        if s.available >= lim.floor:
            self._below_since = None
            return None
        if self._below_since is None:
            self._below_since = s.t
        if s.available < lim.floor // 2:
            return Trip("floor", f"{gib(s.available)} available, below half of the {gib(lim.floor)} floor")
        held = s.t - self._below_since
        if held >= lim.floor_s:
            return Trip("floor", f"{gib(s.available)} available, below {gib(lim.floor)} for {held:.1f} s")
        return None

    def _driver(self, s: Sample) -> Trip | None:
        if not s.driver_lines:
            return None
        return Trip("driver", f"the driver ran out of memory: {s.driver_lines[-1].strip()}")

    def _swap(self, s: Sample) -> Trip | None:
        self._swap_base = s.swap_used if self._swap_base is None else min(self._swap_base, s.swap_used)
        grown = s.swap_used - self._swap_base
        if grown <= self.limits.swap_growth:
            return None
        return Trip("swap", f"swap in use grew by {gib(grown)} (limit {gib(self.limits.swap_growth)})")

    def _pressure(self, s: Sample) -> Trip | None:
        """Share of the last `full_s` seconds in which everything stood still, from PSI's running total.

        The kernel's avg10 lags by seconds; the running total does not.
        """
        if s.full_us is None:
            return None
        self._stalls.append((s.t, s.full_us))
        while len(self._stalls) > 1 and s.t - self._stalls[1][0] >= self.limits.full_s:
            self._stalls.popleft()
        t0, us0 = self._stalls[0]
        span = s.t - t0
        if span < self.limits.full_s:
            return None
        share = (s.full_us - us0) / 1e6 / span * 100
        if share <= self.limits.full_percent:
            return None
        return Trip("pressure", f"all tasks stalled on memory for {share:.0f} % of the last {span:.1f} s")


def gib(n: int) -> str:
    """Bytes as GiB with two decimals."""
    return f"{n / GIB:.2f} GiB"
