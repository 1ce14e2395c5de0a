"""Tell text from garbage without knowing what was asked.

What broken state pools, scales and graph replays print: one token for ever (`!!!!`, token 0), a short loop,
replacement characters, control characters, or a soup of unrelated symbols.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence


def verdict(text: str, ids: Sequence[int] = (), period_ok: int = 0) -> str | None:
    """What is wrong with a generation, or None.

    text: the decoded output; ids: its tokens; period_ok: the shortest loop (tokens) that is allowed, for planted
    fixtures, which go round a cycle on purpose (0: none expected, loops are judged by coverage).
    """
    if ids and (why := _loop(ids, period_ok)):
        return why
    if not text:
        return None
    n = len(text)
    if (bad := text.count("\ufffd")) > max(2, n // 50):
        return f"{bad} replacement characters in {n}"
    control = sum(unicodedata.category(c) == "Cc" and c not in "\n\r\t" for c in text)
    if control > max(1, n // 100):
        return f"{control} control characters in {n}"
    char, count = Counter(text).most_common(1)[0]
    if n >= 24 and count > 0.6 * n and not char.isspace():
        return f"{char!r} makes up {count} of {n} characters"
    letters = sum(c.isalnum() or c.isspace() for c in text)
    if n >= 64 and letters < 0.35 * n:
        return f"only {letters} of {n} characters are letters, digits or spaces"
    return None


def _loop(ids: Sequence[int], period_ok: int) -> str | None:
    """A loop of under 8 tokens over the whole second half, or one token making up most of the output."""
    if len(ids) < 16:
        return None
    token, count = Counter(ids).most_common(1)[0]
    if count > 0.6 * len(ids):
        return f"token {token} makes up {count} of {len(ids)} tokens"
    half = list(ids[len(ids) // 2 :])
    for period in range(1, 8):
        if period_ok and period >= period_ok:
            break
        if len(half) >= 4 * period and all(a == b for a, b in zip(half, half[period:], strict=False)):
            return f"the output loops with a period of {period} tokens"
    return None
