"""The report as pydantic models; `schema.json` beside this file is exported from them (tested to match)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_FILE = Path(__file__).with_name("schema.json")

Outcome = Literal["passed", "failed", "error", "not run"]
Verdict = Literal["good", "not good", "not started", "interrupted"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Bound(Part):
    """What the results hold for, and nothing else."""

    preset: str
    preset_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    preset_status: str
    machine: str | None = Field(None, description="machine class of the preset that was used")
    target: str | None = None
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    image: str | None = None
    image_digest: str | None = None
    hardware: str = Field(description="what it ran on, in words")
    gpu: list[str] = []
    driver: str | None = None
    versions: dict[str, str] = {}
    seed: int
    profile: Literal["quick", "full", "soak"]
    target_kind: Literal["docker", "process", "url"]
    forced: list[str] | None = Field(
        None,
        description="why admission would have refused a start that --force made; empty: none forced; null: no log",
    )


class Check(Part):
    """One check. `ident` names the assertion that failed; `problem` and `todo` are for the operator."""

    group: str
    name: str
    title: str
    outcome: Outcome
    seconds: float
    ident: str | None = None
    problem: str | None = None
    todo: str | None = None
    reason: str | None = Field(None, description="why it was not run")
    matters: bool = Field(True, description="false: not run because the preset rules it out by its nature")


class BootPhase(Part):
    phase: str
    seconds: float


class Boot(Part):
    name: str
    phases: list[BootPhase]


class Acceptance(Part):
    """Mean accepted tokens per verification step, by prompt family and prompt length (tokens)."""

    family: str
    depth: int
    length: float
    tokens: int
    floor: float | None = None


class Load(Part):
    """A workload: medians over its requests in seconds and tokens per second; throughput over all streams."""

    prompt: int
    output: int
    concurrency: int
    asked: str = Field(
        description="the profile's workload before scaling to the context, prompt/output@streams"
    )
    family: str
    ttft_s: float | None
    latency_s: float | None
    decode_rate: float | None
    throughput: float
    accept_length: float | None = None
    ceiling: float | None = Field(
        None,
        description="tokens/s of one stream that memory bandwidth allows at this acceptance (bench/roofline.py)",
    )
    errors: int = 0


class Depth(Part):
    """Time to the first token of a prompt of `tokens` tokens; again with the same prompt (prefix cache)."""

    tokens: int
    ttft_s: float
    again_s: float | None = None
    cached: int | None = None
    accept_length: float | None = None


class MemoryPoint(Part):
    """MemAvailable of the host in bytes, `at` seconds after the run began."""

    at: float
    available: int


class Counts(Part):
    passed: int = 0
    failed: int = 0
    error: int = 0
    not_run: int = 0


class Report(Part):
    schema_version: Literal[1] = 1
    verdict: Verdict
    headline: str
    complete: bool = Field(
        description="good, nothing was left out by selection, and every check that the preset allows ran"
    )
    started: str = Field(description="UTC, ISO 8601")
    seconds: float
    selection: str | None = None
    counts: Counts
    bound: Bound
    engine: dict[str, Any] = Field({}, description="what the engine says of itself (smoke.engine.facts)")
    stopped: dict[str, str] | None = Field(
        None, description="problem, todo and log tail when it did not start"
    )
    checks: list[Check] = []
    boots: list[Boot] = []
    acceptance: list[Acceptance] = []
    loads: list[Load] = []
    depths: list[Depth] = []
    memory: list[MemoryPoint] = []
    notes: list[str] = []

    @property
    def failures(self) -> list[Check]:
        return [c for c in self.checks if c.outcome in ("failed", "error")]

    @property
    def left_out(self) -> list[Check]:
        return [c for c in self.checks if c.outcome == "not run"]


def json_schema() -> dict[str, Any]:
    schema = Report.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "SparkServe smoke report"
    return schema


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text())
