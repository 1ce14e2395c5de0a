"""What is under test: the part of a preset that the smoke suite reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smoke.errors import SmokeError

if TYPE_CHECKING:
    from launch.preset import Preset


@dataclass(frozen=True)
class Subject:
    """A preset as the checks see it. None: the preset does not say, so the check does not ask.

    accept_length is exact and chat_answer is the whole greedy answer: planted fixtures have them. agreement_min is
    the least share of prompts on which greedy output must agree with the control arm, over the first
    agreement_tokens tokens (batch shape moves ties, so real checkpoints do not agree bit for bit).
    """

    name: str
    sha256: str
    status: str = "unknown"
    machine: str | None = None
    target: str | None = None
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    algorithm: str | None = None
    draft_tokens: int | None = None
    draft_block: int | None = None
    draft_quantization: str | None = None
    head: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    accept_length_min: float | None = None
    accept_length: float | None = None
    chat_answer: str | None = None
    fast_path: tuple[str, ...] = ()
    control: str | None = None
    agreement_min: float = 0.8
    agreement_tokens: int = 16

    @property
    def planted(self) -> bool:
        """A fixture's weights are planted: its answers and acceptance are known exactly (smoke/fixtures)."""
        return self.status == "fixture"

    @property
    def agreement_logprob(self) -> float:
        """Allowed mean difference of log-probabilities from the control arm, in nats.

        A fixture's text hardly looks at its context, so a broken state shows faintly there: on the CPU engine a sound
        one differs by 0.0006 and one whose state commits are dropped by 0.0066 (tests/smoke/mutants.py). A real model
        moves by far more when its state is wrong, and by more than a fixture when the batch shape changes.
        """
        return 0.004 if self.planted else 0.05

    @property
    def speculative(self) -> bool:
        return self.algorithm is not None


def from_preset(preset: Preset, machine: str | None = None) -> Subject:
    """The subject of a validated preset on a machine class (default: the preset's own).

    Raises launch's UsageError when the preset does not support the class.
    """
    from launch.resolve import resolve

    machine = machine or preset.default_machine
    draft, smoke = preset.draft, preset.smoke
    return Subject(
        name=preset.name,
        sha256=preset.digest,
        status=str(preset.status),
        machine=machine,
        target=preset.target.source,
        target_revision=preset.target.revision,
        draft=draft.source if draft else None,
        draft_revision=draft.revision if draft else None,
        algorithm=draft.algorithm if draft else None,
        draft_tokens=draft.tokens if draft else None,
        draft_block=draft.block_size if draft else None,
        draft_quantization=draft.quantization if draft else None,
        head=preset.target.expects.lm_head,
        engine=resolve(preset, machine).engine,
        accept_length_min=smoke.accept_length_min,
        accept_length=smoke.accept_length,
        chat_answer=smoke.chat_answer,
        fast_path=tuple(smoke.fast_path),
        control=smoke.control,
    )


def load(name: str, machine: str | None = None) -> Subject:
    """A preset by name. Raises SmokeError (code 2 for an unknown name, 78 for a bad file)."""
    from launch.errors import SparkError
    from launch.registry import Registry

    try:
        return from_preset(Registry().load(name), machine)
    except SparkError as e:
        problem, _, todo = str(e).rpartition("; ")  # the message says already what to do
        raise SmokeError(problem or todo, todo if problem else "", e.exit_code) from e


def anonymous(url: str) -> Subject:
    """A server of anyone's, without a preset: only what every good server does is asked."""
    return Subject(name="anonymous", sha256=hashlib.sha256(url.encode()).hexdigest())
