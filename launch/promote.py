"""Move a preset to `validated`: only with a smoke report that is about exactly this preset. Mostly pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.errors import CheckFailed, ConfigError, UsageError
from launch.files import write_text
from launch.machine import Gpu, classify
from launch.preset import Preset, Status

PROMOTABLE = (Status.REPORTED, Status.EXPERIMENTAL)
PROFILES = ("full", "soak")  # `quick` shows that it starts, not that it holds
_STATUS = re.compile(r'^status\s*=\s*"[^"]*"', re.MULTILINE)


def read_report(path: Path) -> dict[str, Any]:
    """A smoke report as data. ConfigError when it is not one."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}; give the report.json of a smoke run") from e
    except ValueError as e:
        raise ConfigError(f"{path}: not JSON ({e}); give the report.json of a smoke run") from e
    if not isinstance(report, dict) or not isinstance(report.get("bound"), dict):
        raise ConfigError(f"{path}: not a smoke report (no `bound`); give the report.json of a smoke run")
    return report


def objections(preset: Preset, report: Mapping[str, Any]) -> list[str]:
    """Why this report does not validate this preset; empty when it does."""
    b: Mapping[str, Any] = report["bound"]
    out = []
    if preset.status not in PROMOTABLE:
        out.append(f"status is {preset.status}; only {' and '.join(PROMOTABLE)} presets can be promoted")
    if report.get("verdict") != "good":
        out.append(f"the verdict is {report.get('verdict')!r}, not 'good'")
    if report.get("complete") is not True:
        out.append("the run was not complete: checks were left out")
    if b.get("profile") not in PROFILES:
        out.append(f"profile {b.get('profile')!r}; needed: {' or '.join(PROFILES)}")
    if b.get("target_kind") != "docker":
        out.append(
            f"it ran against a {b.get('target_kind')!r} target; only an image with a digest can be validated"
        )
    if not re.fullmatch(r"(sha256:)?[0-9a-f]{64}", str(b.get("image_digest") or "")):
        out.append("it names no image digest")
    draft = preset.draft
    pairs = [("name", b.get("preset"), preset.name), ("sha256", b.get("preset_sha256"), preset.digest),
             ("target.repo", b.get("target"), preset.target.source),
             ("target.revision", b.get("target_revision"), preset.target.revision),
             ("draft.repo", b.get("draft"), draft.source if draft else None),
             ("draft.revision", b.get("draft_revision"), draft.revision if draft else None)]  # fmt: skip
    out += [f"{key}: the report has {got!r}, the preset {want!r}" for key, got, want in pairs if got != want]
    return out + _machine(preset, b)


def _machine(preset: Preset, b: Mapping[str, Any]) -> list[str]:
    machine = b.get("machine")
    if machine not in preset.machine:
        return [f"machine {machine!r} is not one of the preset's: {', '.join(preset.machine)}"]
    gpus = b.get("gpu") or []
    if not gpus:
        return ["it names no GPU"]
    names = tuple(Gpu(str(g), None, None, None) for g in gpus)
    # A GB10's class also depends on its memory, which the report's machine class already states.
    found = classify(names, 128 << 30 if machine == "gb10-128" else 64 << 30)
    return [] if found == machine else [f"it ran on {gpus[0]}, which is not a {machine}"]


def promoted_text(text: str, report: Mapping[str, Any], evidence: str) -> str:
    """The preset file's text with status `validated` and a [[reported]] entry that points to the evidence."""
    if not _STATUS.search(text):
        raise ConfigError(
            'the preset file has no line `status = "…"` of its own; write one and run promote again'
        )
    b = report["bound"]
    gpus = ", ".join(str(g) for g in b["gpu"])
    fields = {
        "by": "SparkServe smoke suite",
        "hardware": f"{b['machine']}: {gpus}",
        "engine": f"image {b['image_digest']}",
        "source": evidence,
    }
    # A JSON string is a valid TOML basic string.
    entry = "\n[[reported]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())
    return _STATUS.sub('status = "validated"', text, count=1).rstrip("\n") + "\n" + entry


def promote(preset: Preset, file: Path, report_path: Path, evidence_dir: Path) -> Path:
    """Check the report, keep it under `evidence_dir`, rewrite the preset file. Returns the evidence.

    CheckFailed lists every objection; nothing is written then. UsageError when other evidence has that name.
    """
    report = read_report(report_path)
    if wrong := objections(preset, report):
        raise CheckFailed(f"{preset.name} stays {preset.status}: {'; '.join(wrong)}")
    b = report["bound"]
    day = str(report.get("started", ""))[:10]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        raise CheckFailed(f"{report_path}: `started` is not a date; nothing promoted")
    name = f"{preset.name}@{b['machine']}-{day}-{preset.digest[:8]}.json"
    target = evidence_dir / name
    text = json.dumps(report, indent=2, sort_keys=True) + "\n"
    if target.exists() and target.read_text("utf-8") != text:
        raise UsageError(
            f"{target}: other evidence of that day is there already; evidence is never overwritten"
        )
    new = promoted_text(file.read_text("utf-8"), report, f"evidence/{name}")
    write_text(target, text)
    write_text(file, new)
    return target
