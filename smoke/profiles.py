"""How much a profile does. Every figure here is a limit or a size, never an expectation of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """Prompts of `prompt` tokens, `output` tokens each, `concurrency` at once."""

    prompt: int
    output: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.prompt}/{self.output}@{self.concurrency}"

    @property
    def slug(self) -> str:
        """As `name`, in characters that pytest's -k takes."""
        return f"{self.prompt}-{self.output}-x{self.concurrency}"


@dataclass(frozen=True)
class Profile:
    """`rank` orders quick < full < soak; a check marked for a higher rank is left out.

    depths: prompt lengths (tokens) of the needle and time-to-first-token series; request_s: the longest one
    request may take; soak_s: how long the soak group runs.
    """

    name: str
    rank: int
    loads: tuple[Load, ...]
    three_at_once: int
    depths: tuple[int, ...]
    accept_tokens: int
    garbage_streams: int
    garbage_tokens: int
    request_s: float
    soak_s: float


SEED_LOADS = tuple(Load(p, o, c) for p, o in ((1000, 1000), (50_000, 400), (97_000, 3000)) for c in (1, 4, 8))

QUICK = Profile(
    "quick", 0, tuple(Load(1000, 128, c) for c in (1, 4, 8)), 0, (256, 1024, 4096), 96, 4, 96, 120.0, 0.0
)
FULL = Profile(
    "full", 1, SEED_LOADS, 250_000, (1024, 32_768, 65_536, 131_072, 245_000), 512, 8, 512, 1800.0, 0.0
)
SOAK = Profile("soak", 2, FULL.loads, FULL.three_at_once, FULL.depths, 512, 8, 512, 1800.0, 4 * 3600.0)

PROFILES = {p.name: p for p in (QUICK, FULL, SOAK)}


def fit(load: Load, context: int, pool: int | None, room: int = 16) -> Load:
    """Scale a workload down so that it fits a small context and token pool; a real preset keeps it as it is.

    Prompt and output shrink together, so a long prompt stays a long prompt. `room` tokens stay free.
    """
    limit = context if pool is None else min(context, pool // load.concurrency)
    total = load.prompt + load.output
    if total + room <= limit:
        return load
    ratio = max(limit - room, 16) / total
    return Load(max(int(load.prompt * ratio), 8), max(int(load.output * ratio), 4), load.concurrency)


def depths(profile: Profile, context: int, pool: int | None, answer: int = 64) -> tuple[int, ...]:
    """The profile's depths that fit and, when one does not, the deepest that does; at least three steps."""
    limit = max(96, (context if pool is None else min(context, pool)) - answer - 16)
    fitting = {d for d in profile.depths if d <= limit}
    if len(fitting) < len(profile.depths):
        fitting.add(limit)
    if len(fitting) < 3:
        fitting |= {max(32, limit * i // 4) for i in (1, 2)}
    return tuple(sorted(fitting))
