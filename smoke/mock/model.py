"""The mock's model: a word tokenizer, a planted cycle, and canned answers for tools, schemas and needles."""

from __future__ import annotations

import re
import threading
from typing import Any

CYCLE = 16
ANSWER = "Hello! How can I help you today?"
THOUGHT = "I need"
_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]{1,3}|\s+|[^\sA-Za-z0-9]")
_NEEDLE = re.compile(r"code of the blue vault is ([0-9-]+)\.")


class Tokenizer:
    """Words to ids, in order of first sight. Ids made by the planted cycle and never seen decode to `w<id>`."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.words: dict[int, str] = {}
        self.lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self.lock:
            out = []
            for piece in _PIECE.findall(text):
                if piece not in self.ids:
                    # Leave room between words, so that a cycle of 16 never runs into another word's.
                    n = self.ids[piece] = 1000 + CYCLE * len(self.ids)
                    self.words[n] = piece
                out.append(self.ids[piece])
            return out

    def decode(self, ids: list[int]) -> str:
        return "".join(self.words.get(i, f" w{i}") for i in ids)


def successor(token: int) -> int:
    return token - token % CYCLE + (token + 1) % CYCLE


def walk(last: int, n: int, step: int = 1) -> list[int]:
    out = []
    for _ in range(n):
        for _ in range(step):
            last = successor(last)
        out.append(last)
    return out


def logprob(token: int) -> float:
    return -0.01 * (1 + token % 7)


def example(schema: dict[str, Any]) -> Any:
    """A value that satisfies one of the suite's schemas."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {k: example(v) for k, v in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema["items"]) for _ in range(schema.get("minItems", 1))]
    return {"integer": schema.get("minimum", 0), "boolean": True}.get(str(kind), "text")


def answer(messages: list[dict[str, Any]], planted: bool) -> str:
    """What the mock says to a conversation."""
    text = " ".join(str(m.get("content") or "") for m in messages)
    if planted:
        return ANSWER
    if m := _NEEDLE.search(text):
        return m[1]
    return "The capital of France is Paris, a large city on the river Seine."
