"""Text that the prompt families are cut from: written for this suite, generated without randomness of the moment.

Every family is an endless, seeded stream of pieces, so that a prompt of any length exists and the same seed gives
the same bytes on every machine. Prose and chat are sentences over a small world of people, places and work; code
and JSON are whole, well-formed units. Random token ids are not a family: they collapse acceptance and measure nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

_WHO = (
    "the ferry master",
    "a young surveyor",
    "the night baker",
    "an old clockmaker",
    "the harbour pilot",
    "the librarian",
    "a travelling welder",
    "the beekeeper",
    "the signal operator",
    "a retired teacher",
)
_DID = (
    "wrote the depth of the channel into a grey notebook",
    "counted the crates twice before the rain began",
    "mended the pump with a strip of copper and patience",
    "asked the neighbours for a lamp and a longer rope",
    "left the gate open so that the sheep could find the water",
    "carried the letters across the frozen yard",
    "measured the wall again and found the same crack",
    "sold the last of the plums at the northern market",
    "drew a map of the cellar from memory",
    "waited for the second bell and then closed the shutters",
)
_WHEN = (
    "Before sunrise",
    "In the third week of March",
    "While the tide was low",
    "After the long meeting",
    "On the coldest day of that winter",
    "When the road was still wet",
    "Late in the evening",
    "During the harvest",
    "A little after noon",
    "Once the inspectors had gone",
)
_WHY = (
    "because the bridge could bear no more than two carts",
    "although nobody had asked for it",
    "so the children would know where the wells are",
    "and the figures were correct to the inch",
    "which is why the tower still stands",
    "and that settled the quarrel about the fence",
    "but the ledger told another story",
    "since the wind had turned to the east",
)
_NOUNS = ("queue", "window", "ledger", "route", "sensor", "parcel", "shift", "batch", "meter", "signal")
_VERBS = ("merge", "count", "split", "check", "store", "rank", "trim", "shift", "pack", "scan")
_ASKS = (
    "Explain why {w} {d}, in plain words and with one example.",
    "Summarize this for a newcomer: {w} {d} {y}.",
    "What would you check first if {w} {d}? Give three steps.",
    "Write a short note to the council: {w} {d} {y}.",
)


def prose(rng: random.Random) -> Iterator[str]:
    while True:
        yield f"{rng.choice(_WHEN)}, {rng.choice(_WHO)} {rng.choice(_DID)} {rng.choice(_WHY)}. "


def code(rng: random.Random) -> Iterator[str]:
    n = 0
    while True:
        n += 1
        noun, verb, limit = rng.choice(_NOUNS), rng.choice(_VERBS), rng.randint(2, 64)
        yield (
            f"def {verb}_{noun}_{n}(items: list[int], limit: int = {limit}) -> list[int]:\n"
            f'    """Return the {noun} values below the limit, in order."""\n'
            f"    result = []\n    for index, item in enumerate(items):\n"
            f"        if item % {rng.randint(2, 9)} == 0 and index < limit:\n"
            f"            result.append(item + {rng.randint(1, 99)})\n    return sorted(result)\n\n\n"
        )


def records(rng: random.Random) -> Iterator[str]:
    n = 0
    while True:
        n += 1
        row = {
            "id": n,
            "kind": rng.choice(_NOUNS),
            "state": rng.choice(["open", "closed", "waiting"]),
            "weight": rng.randint(1, 900) / 10,
            "steps": [rng.choice(_VERBS) for _ in range(3)],
        }
        yield json.dumps(row) + "\n"


def chat(rng: random.Random) -> Iterator[str]:
    while True:
        ask = rng.choice(_ASKS).format(w=rng.choice(_WHO), d=rng.choice(_DID), y=rng.choice(_WHY))
        yield f"Question: {ask}\nAnswer: {rng.choice(_WHEN)}, {rng.choice(_WHO)} {rng.choice(_DID)}.\n\n"


STREAMS = {"prose": prose, "code": code, "json": records, "chat": chat}

# How a prompt of the family ends, so that the model has something to go on with.
ENDINGS = {
    "prose": "\nThe next morning,",
    "code": "def merge_sorted(left: list[int], right: list[int]) -> list[int]:\n",
    "json": '{"id": ',
    "chat": "Question: Explain how a ferry keeps its timetable.\nAnswer:",
}


def text(family: str, seed: int, characters: int) -> str:
    """At least `characters` characters of the family. KeyError for an unknown family."""
    stream, parts, have = STREAMS[family](random.Random(f"{family}:{seed}")), [], 0
    while have < characters:
        piece = next(stream)
        parts.append(piece)
        have += len(piece)
    return "".join(parts)
