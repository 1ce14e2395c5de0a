"""Greedy text through DFLASH equals greedy text without a draft, on both fixtures and both draft classes.

Four more boots of the server; deselect with `-k "not equivalence"` when in a hurry.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from smoke.fixtures import oracle

from .server import PARIS, Server, draft_args

pytestmark = pytest.mark.engine

TOKENS = 40
CONTEXT = 512  # short, so that filling it is quick


def prompts(seed: int = 0) -> list[list[int]]:
    """Random token runs of 1 to 130: lengths on both sides of a page and of a GDN chunk."""
    r = random.Random(seed)
    return [[r.randrange(1957) for _ in range(n)] for n in (1, 3, 7, 16, 33, 65, 130)]


def answers(server: Server, target: Path) -> dict[str, Any]:
    """Greedy ids of every prompt (EOS ignored), the chat answer, acceptance, log-probabilities of the oracle."""
    data: Any = oracle.read(target)
    got, want = [], []
    for p in data["prompts"]:
        r = server.generate(p["input_ids"], len(p["output_ids"]), return_logprob=True)
        got += [x[0] for x in r["meta_info"]["output_token_logprobs"]]
        want += p["logprobs"]
    return {
        "ids": [server.generate(p, TOKENS)["output_ids"] for p in prompts()],
        "chat": server.chat()["choices"][0]["message"]["content"],
        "accept": server.generate(PARIS, 64)["meta_info"].get("spec_accept_length"),
        "difference": oracle.difference(got, want),
        "tolerance": data["tolerance"],
    }


@pytest.fixture(scope="module")
def run(fixtures, tmp_path_factory):
    """Boot a pair once, ask everything, end it."""

    @cache
    def boot(target: str, draft: str | None) -> dict[str, Any]:
        log = tmp_path_factory.mktemp("engine") / f"{target}-{draft}.log"
        short = ["--context-length", str(CONTEXT)]
        with Server(fixtures / target, log, *draft_args(fixtures / draft if draft else None), *short) as s:
            # The context is filled first, but for the 8 tokens that the engine keeps: a reserve that leaves
            # its row (P29) ends the server when it is next idle.
            full = s.generate([1 + i % 1900 for i in range(CONTEXT - 32)], 24)["output_ids"]
            return {"full": full, **answers(s, fixtures / target)}

    return boot


@pytest.fixture(scope="module")
def with_dflash2(server, fixtures):
    """The session's own server has this pair already."""
    return answers(server, fixtures / "qwen38-w4a4")


def agree(drafted: dict[str, Any], plain: dict[str, Any], accept: float) -> None:
    assert plain["accept"] is None, "the control ran with a draft"
    assert drafted["accept"] == accept
    assert len(plain["full"]) == 24
    assert drafted.get("full", plain["full"]) == plain["full"]
    assert drafted["ids"] == plain["ids"]
    assert drafted["chat"] == plain["chat"]
    for side in (drafted, plain):
        assert side["difference"].within(side["tolerance"]), oracle.summary(side["difference"])


def test_equivalence_w4a4_dflash2(with_dflash2, run):
    agree(with_dflash2, run("qwen38-w4a4", None), 8.0)


def test_equivalence_w4a4_dflash1(run):
    agree(run("qwen38-w4a4", "dflash"), run("qwen38-w4a4", None), 2.0)


def test_equivalence_w4a16_dflash2(run):
    agree(run("qwen36-w4a16", "dflash2"), run("qwen36-w4a16", None), 8.0)
