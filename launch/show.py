"""Everything an operator asks about a preset, as text. Pure."""

from __future__ import annotations

from launch.preset import Checkpoint, Preset
from launch.resolve import resolve


def show_text(preset: Preset, machine: str | None = None) -> str:
    """Checkpoints, pins, flags per machine class, what smoke expects, reports, sources."""
    lines = [f"{preset.name}: {preset.title}", *([preset.summary] if preset.summary else []), ""]
    lines.append(f"status     {preset.status}" + (f": {preset.why}" if preset.why else ""))
    if preset.instead:
        lines.append(f"instead    {preset.instead}")
    lines.append(f"machines   {', '.join(preset.machine)} (default {preset.default_machine})")
    lines.append(f"digest     {preset.digest}")
    if preset.needs_patches:
        lines.append(f"needs      patches {', '.join(preset.needs_patches)}")
    lines += ["", "target", *_checkpoint(preset.target)]
    expects = preset.target.expects.model_dump(exclude_none=True)
    lines += [f"  expects {key}: {value}" for key, value in expects.items()]
    if preset.draft is None:
        lines += ["", "draft      none"]
    else:
        draft = preset.draft
        lines += ["", "draft", *([] if draft.in_target else _checkpoint(draft))]
        inside = ", MTP layers inside the target" if draft.in_target else ""
        lines.append(
            f"  {draft.algorithm}, {draft.tokens} tokens a step, quantization {draft.quantization}{inside}"
        )
    for name in [machine] if machine else preset.machine:
        resolved = resolve(preset, name)
        lines += ["", f"engine on {name}"]
        lines += [f"  {key} = {value}" for key, value in resolved.engine.items()]
        lines += [f"  env {key}={value}" for key, value in resolved.env.items()]
    smoke = preset.smoke.model_dump(exclude_none=True, exclude_defaults=True)
    if smoke:
        lines += ["", "smoke", *(f"  {key}: {value}" for key, value in smoke.items())]
    if preset.reported:
        lines += ["", "reported by"]
        for r in preset.reported:
            lines.append(
                f"  {r.by}, {r.hardware}, {r.engine} ({r.source})" + (f": {r.note}" if r.note else "")
            )
    if preset.sources:
        lines += ["", "sources", *(f"  {key}: {value}" for key, value in preset.sources.items())]
    return "\n".join(lines)


def _checkpoint(checkpoint: Checkpoint) -> list[str]:
    lines = [f"  {checkpoint.source}"]
    for key in ("revision", "license", "lock"):
        value = getattr(checkpoint, key)
        if value:
            lines.append(f"  {key} {value}")
    return lines
