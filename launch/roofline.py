"""Bytes one decoding step must read and write, and the tokens per second that memory bandwidth allows. Pure.

A step of one request is one pass of the target over the draft's tokens, one pass of the draft, and what they read besides:
KV of the context, recurrent states. Weights are read once however many requests run; the other terms grow with them.
Activations, and every kernel that is not at full bandwidth, are left out: it is a ceiling, not a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.gemms import HEAD, Gemm
from launch.plan import PlanFacts, kv_bytes, read_request, state_bytes
from launch.resolve import Resolved

SHARED_HEAD = (
    "DFLASH",
    "DSPARK",
)  # drafts that project through the target's head (facts 2.2; patches P06, P07)


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes of one step at `requests` running requests of `context` tokens. `notes` say what is estimated or left out."""

    target: int
    head: int
    draft: int
    kv: int
    state: int
    requests: int
    context: int
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.target + self.head + self.draft + self.kv + self.state

    def ceiling(self, bandwidth: float, acceptance: float) -> float:
        """Tokens/s over all requests at `bandwidth` bytes/s, with `acceptance` tokens kept a step and request.

        The token the target adds itself is one of them: without a draft it is 1.
        """
        return acceptance * self.requests * bandwidth / self.total


def step(
    r: Resolved, facts: PlanFacts, gemms: Sequence[Gemm], *, context: int = 0, requests: int = 1
) -> Step:
    """The step of a resolved preset. ConfigError when the preset has no geometry.

    - target: dense layers without the head; embeddings are a row a token, vision and MTP layers are not read.
    - head: once to verify, once more where the draft projects through it; MTP does so for each of its draft tokens.
    - draft: all of its file. Its own embeddings, should it carry any, would be counted too much.
    - kv: keys and values of `context` tokens, read once, in the target's pool and the draft's. A draft with a sliding window
      reads less; its window is not in the preset, so it is counted whole and said.
    - state: recurrent states of each request: one read, and one written per draft token (one without
      a draft); upstream-gaps B2.10.
    """
    q = read_request(r, facts)
    g = r.preset.target.geometry
    assert g is not None
    draft = r.preset.draft
    heads = sum(x.count * x.weight_bytes for x in gemms if x.name == HEAD)
    notes = []
    passes = 1
    if draft is not None and draft.algorithm in SHARED_HEAD:
        passes = 2
    if draft is not None and draft.in_target:
        passes = draft.tokens  # a pass of the MTP layer, and of the head, for each draft token; one to verify
        notes.append("MTP layers are not counted: their size is not stated")
    draft_cell = (
        2
        * facts.draft_layers
        * facts.draft_kv_heads
        * facts.draft_head_dim
        * (1 if q.draft_kv_dtype.startswith("fp8") else 2)
    )
    if draft_cell and context:
        notes.append("the draft's KV is counted without its window")
    state = state_bytes(g, q.ssm_dtype)
    return Step(
        target=sum(x.count * x.weight_bytes for x in gemms if x.name != HEAD),
        head=passes * heads,
        draft=facts.draft_bytes,
        kv=requests * context * (kv_bytes(g, q.kv_dtype) + draft_cell),
        state=requests * state * (1 + max(1, q.draft_tokens)),
        requests=requests,
        context=context,
        notes=(*notes, *facts.assumed),
    )
