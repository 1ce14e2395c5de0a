"""Prompts of an exact length in tokens, by the server's own tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smoke.workload.texts import ENDINGS, STREAMS, text

FAMILIES = tuple(STREAMS)
Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Prompt:
    """Token ids to send as `input_ids`: no template, no second tokenization, so the length is exact."""

    family: str
    seed: int
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


def make(family: str, seed: int, length: int, tokenize: Tokenize, ending: str | None = None) -> Prompt:
    """A prompt of exactly `length` tokens that ends with the family's ending (or `ending`).

    The body is cut at a token, the ending is kept whole; a length that does not even hold the ending keeps its end.
    """
    tail = list(tokenize(ENDINGS[family] if ending is None else ending))
    if length <= len(tail):
        return Prompt(family, seed, tuple(tail[-length:]))
    want = length - len(tail)
    characters = want * 4 + 200
    while len(body := list(tokenize(text(family, seed, characters)))) < want:
        characters = characters * 2
    return Prompt(family, seed, tuple(body[:want] + tail))


@dataclass(frozen=True)
class Needle:
    """A fact at a relative depth (0 start, 1 end) in a haystack of prose, and the question for it."""

    text: str
    answer: str
    depth: float


def needle(seed: int, depth: float, characters: int) -> Needle:
    """A haystack of about `characters` characters that hides one code number at `depth`."""
    rng = random.Random(f"needle:{seed}:{depth}")
    code = f"{rng.randint(1000, 9999)}-{rng.randint(1000, 9999)}"
    hay = text("prose", seed, characters)
    cut = hay.rfind(". ", 0, int(len(hay) * depth) + 1)
    cut = 0 if cut < 0 else cut + 2
    fact = f"The code of the blue vault is {code}. "
    ask = "\n\nWhat is the code of the blue vault? Answer with the code only."
    return Needle(hay[:cut] + fact + hay[cut:] + ask, code, depth)
