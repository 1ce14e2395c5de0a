"""Is a series going up or down, and how sure can one be? For the soak's memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = 12


@dataclass(frozen=True)
class Trend:
    """Least-squares slope per unit of time, and twice its standard error."""

    slope: float
    margin: float


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """The trend of (time, value) points; None for fewer than four or without any span of time.

    Samples that follow each other closely are not independent, so the means of at most 12 equal blocks are fitted.
    """
    if len(points) < 4:
        return None
    n = min(BLOCKS, len(points))
    cut = [points[i * len(points) // n : (i + 1) * len(points) // n] for i in range(n)]
    x = [statistics.fmean(t for t, _ in block) for block in cut]
    y = [statistics.fmean(v for _, v in block) for block in cut]
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    if spread == 0:
        return None
    line = statistics.linear_regression(x, y)
    rest = sum((b - line.slope * a - line.intercept) ** 2 for a, b in zip(x, y, strict=True))
    return Trend(line.slope, 2 * math.sqrt(rest / (n - 2) / spread))
