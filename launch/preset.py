"""The preset format: pydantic models, from which `presets/schema.json` is exported.

A preset is data: which checkpoints (pinned), which engine flags, what changes per machine class, what smoke
must see, and who reported the values. `launch.registry` loads the files and merges `extends` first.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
Repo = Annotated[str, Field(pattern=r"^[\w.\-]+/[\w.\-]+$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="a commit, never a branch")]
MachineName = Literal["gb10-128", "gb10-64", "rtx-pro-6000", "rtx-5090", "h200", "cpu"]
# bool before int: pydantic keeps the exact TOML type in smart mode
EngineValue = bool | int | float | str | list[Any] | dict[str, Any]

COMPUTED = "computed"  # mamba_full_memory_ratio: from shapes and request length, never a copied constant


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Status(StrEnum):
    """How far a preset can be trusted."""

    FIXTURE = "fixture"  # tiny checkpoint built on the spot; proves the path, not a model
    VALIDATED = "validated"  # a smoke report of ours with the same preset hash, image and hardware
    REPORTED = "reported"  # others ran these values; see [[reported]]
    EXPERIMENTAL = "experimental"  # put together from facts, run by nobody we know of
    KNOWN_BAD = "known-bad"  # kept so that asking for it explains why not


class Expects(Model):
    """Checked against config.json / hf_quant_config.json before any weight is fetched."""

    architecture: str | None = None
    quantization: str | None = Field(default=None, description="what the engine detects, e.g. modelopt_mixed")
    lm_head: str | None = Field(
        default=None, description="quantization label of the head: NVFP4, W4A16_NVFP4, FP8, BF16"
    )
    kv_cache: str | None = Field(
        default=None, description="KV dtype the checkpoint declares; 'none' when it declares none"
    )


class Geometry(Model):
    """Shapes of the target's text model that the memory plan needs. Per layer, before tensor parallelism."""

    layers: int
    hidden_size: int
    vocab_size: int
    native_context: int
    attention_layers: int = Field(description="layers with a KV cache")
    kv_heads: int
    head_dim: int
    linear_layers: int = Field(
        0, description="gated delta-net layers, each with one recurrent state per slot"
    )
    linear_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    conv_channels: int = 0
    conv_states: int = Field(default=0, description="kernel size - 1")


class Checkpoint(Model):
    """Where weights come from: a pinned hub repository, or a fixture built by `sparkserve fixtures build`."""

    repo: Repo | None = None
    revision: Revision | None = None
    fixture: Name | None = None
    license: str | None = None
    lock: str | None = Field(default=None, description="launch/locks/… with file names, sizes and sha256")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.fixture is not None and self.repo is not None:
            raise ValueError("give repo or fixture, not both")
        if self.repo is None and self.revision is not None:
            raise ValueError("revision without repo")
        return self

    @property
    def source(self) -> str:
        return self.repo or f"fixture:{self.fixture}"


class Target(Checkpoint):
    expects: Expects = Expects()
    geometry: Geometry | None = None

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if self.repo is None and self.fixture is None:
            raise ValueError("target needs repo and revision, or fixture")
        return self


class Draft(Checkpoint):
    """The speculative draft. `in_target = true` for MTP layers inside the target's own checkpoint."""

    algorithm: Literal["DFLASH", "DSPARK", "NEXTN", "EAGLE", "EAGLE3"]
    in_target: bool = False
    tokens: int = Field(ge=1, le=64, description="draft tokens verified per step")
    quantization: str = Field(
        description="always explicit (unquant, modelopt_fp4, …): the engine would inherit"
    )
    block_size: int | None = Field(default=None, description="block size the draft was trained with")

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if self.in_target == (self.repo is not None or self.fixture is not None):
            raise ValueError("draft needs exactly one of repo, fixture or in_target = true")
        return self


class Memory(Model):
    """What the memory plan assumes where the engine asks for a ratio."""

    request_tokens: int = Field(default=9216, ge=1, description="average request length, prompt and answer")


class Smoke(Model):
    """What the smoke suite must see."""

    accept_length_min: float | None = Field(default=None, ge=1)
    accept_length: float | None = Field(default=None, ge=1, description="exact; planted fixtures only")
    chat_answer: str | None = Field(default=None, description="exact greedy answer; planted fixtures only")
    fast_path: list[
        Literal[
            "selector-in-graph", "head-in-graph", "quantized-head", "fp8-kv", "draft-graph", "target-graph"
        ]
    ] = []
    control: Name | None = Field(default=None, description="the same target without a draft")


class Reported(Model):
    """Who ran these values, where, and where that is written down."""

    by: str
    hardware: str
    engine: str
    source: str
    note: str | None = None


class Override(Model):
    """What a machine class changes."""

    engine: dict[str, EngineValue] = {}
    env: dict[str, str] = {}


class Preset(Model):
    """One thing an operator can ask for by name."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: Name
    title: str
    summary: str = ""
    status: Status
    default_machine: MachineName
    target: Target
    draft: Draft | None = None
    engine: dict[str, EngineValue] = {}
    env: dict[str, str] = {}
    machine: dict[MachineName, Override] = Field(min_length=1, description="the classes it supports")
    memory: Memory = Memory()
    smoke: Smoke = Smoke()
    reported: list[Reported] = []
    needs_patches: list[Annotated[str, Field(pattern=r"^P\d\d$")]] = []
    sources: dict[str, str] = Field(
        default={}, description="where values come from: engine key or part -> source"
    )
    why: str | None = Field(default=None, description="known-bad: what happens, and where it was reported")
    instead: Name | None = Field(default=None, description="known-bad: the preset to use")

    @model_validator(mode="before")
    @classmethod
    def _flat_overrides(cls, data: Any) -> Any:
        """In TOML a machine table holds engine keys directly, and its environment under `env`."""
        if not isinstance(data, dict) or not isinstance(data.get("machine"), dict):
            return data
        machine = {}
        for name, table in data["machine"].items():
            machine[name] = table
            if isinstance(table, dict) and "engine" not in table:
                machine[name] = {
                    "engine": {k: v for k, v in table.items() if k != "env"},
                    "env": table.get("env", {}),
                }
        return {**data, "machine": machine}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.default_machine not in self.machine:
            raise ValueError(
                f"default_machine {self.default_machine} has no [machine.{self.default_machine}] table"
            )
        if (self.status is Status.KNOWN_BAD) != (self.why is not None):
            raise ValueError("why belongs to status known-bad, and known-bad needs it")
        for checkpoint in (self.target, *([self.draft] if self.draft else [])):
            unpinned = checkpoint.repo is not None and checkpoint.revision is None
            if unpinned and self.status is not Status.KNOWN_BAD:
                raise ValueError(
                    f"{checkpoint.source} needs revision: 40 hex digits of a commit, never a branch"
                )
        if self.status is Status.REPORTED and not self.reported:
            raise ValueError("status reported needs at least one [[reported]] entry")
        if (self.status is Status.FIXTURE) != (self.target.fixture is not None):
            raise ValueError("status fixture goes with target.fixture, and only with it")
        return self

    @property
    def digest(self) -> str:
        """sha256 of the merged preset in canonical JSON: what a smoke report binds its result to.

        Status, reports and prose are left out, so that promoting a preset does not change its digest.
        """
        left_out = {"status", "reported", "title", "summary", "sources"}
        data = self.model_dump(mode="json", by_alias=True, exclude=left_out)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a preset file, as an author writes it (machine tables flat, `extends` allowed)."""
    schema = Preset.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "SparkServe preset"
    value = schema["properties"]["engine"]["additionalProperties"]
    schema["$defs"]["Override"] = {
        "description": "Engine keys this machine class changes, and its environment under env.",
        "type": "object",
        "properties": {"env": {"type": "object", "additionalProperties": {"type": "string"}}},
        "additionalProperties": value,
    }
    schema["properties"]["extends"] = {"type": "string", "description": "the preset or base file it varies"}
    schema["properties"]["abstract"] = {"type": "boolean", "description": "a base for others, not a preset"}
    schema["properties"]["drop"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "dotted paths of inherited keys that this file does not keep",
    }
    # A file that extends another need not repeat what it inherits; the merged preset is checked in full.
    schema["properties"]["name"]["pattern"] = r"^_?[a-z0-9][a-z0-9.\-]*$"
    whole = sorted({*schema["required"], "schema"})
    schema["required"] = ["schema", "name"]
    partial = {"anyOf": [{"required": ["extends"]}, {"required": ["abstract"]}]}
    schema["if"], schema["then"] = {"not": partial}, {"required": whole}
    for name in ("Target", "Draft", "Geometry"):
        schema["$defs"][name].pop("required", None)
    return schema
