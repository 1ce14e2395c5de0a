"""Write report.json and report.html, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import jinja2

from smoke.errors import CANNOT_WRITE, NOT_GOOD, SmokeError
from smoke.report.model import Check, Report
from smoke.report.plots import draw_all


def write(report: Report, folder: Path) -> list[Path]:
    """Both files of a report in `folder`. Raises SmokeError (73) when that cannot be."""
    data = json.dumps(report.model_dump(mode="json"), indent=2) + "\n"
    files = {"report.json": data, "report.html": html(report)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_replace(folder / name, text) for name, text in files.items()]
    except OSError as e:
        todo = "free space or choose another --report folder"
        raise SmokeError(f"cannot write to {folder} ({e.strerror})", todo, CANNOT_WRITE) from e


KEEP_BYTES = 256 * 1024  # of each boot's log: its first and its last half, as characters
# `mask_token=` and `hf_chat_template_name` are no secrets; a hub token is hf_ and 34 letters and digits.
_SECRETS = re.compile(
    r"(?i)((?:^|[^a-z])(?:api[-_]?key|(?:hf|hub|auth|access|bearer)[-_]?token|password|secret))(['\"]?\s*[=:]\s*['\"]?)"
    r"(?!None\b|\d+\b)[^\s'\",)]{6,}|\bhf_[A-Za-z0-9]{20,}"
)


def write_logs(logs: dict[str, str], folder: Path, api_key: str | None) -> list[Path]:
    """`engine-N-NAME.log` for each boot, shortened and without secrets. Raises SmokeError (73)."""
    try:
        return [
            _replace(
                folder / f"engine-{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.log", shorten(redact(text, api_key))
            )
            for name, text in logs.items()
        ]
    except OSError as e:
        todo = "free space or choose another --report folder"
        raise SmokeError(f"cannot write to {folder} ({e.strerror})", todo, CANNOT_WRITE) from e


def redact(text: str, api_key: str | None) -> str:
    """Blank out the key we know, whatever is named like a secret, hub tokens, and the user's home folder."""
    if api_key:
        text = text.replace(api_key, "***")
    text = _SECRETS.sub(lambda m: f"{m[1]}{m[2]}***" if m[1] else "***", text)
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def shorten(text: str, limit: int = KEEP_BYTES) -> str:
    """Whole lines from both ends, with a line between them that says how many are missing."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2].rpartition("\n")[0], text[-limit // 2 :].partition("\n")[2]
    missing = len(text.splitlines()) - len(head.splitlines()) - len(tail.splitlines())
    return f"{head}\n[... {missing} lines left out ...]\n{tail}"


def _replace(path: Path, text: str) -> Path:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as f:
        try:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
            Path(f.name).chmod(0o644)
            Path(f.name).replace(path)
        except BaseException:
            Path(f.name).unlink(missing_ok=True)
            raise
    return path


def read(path: Path) -> Report:
    """A report.json, or a folder that holds one. Raises SmokeError when it is missing or not a report."""
    path = path / "report.json" if path.is_dir() else path
    try:
        return Report.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise SmokeError(
            f"cannot read {path} ({e.strerror})", "name a report.json or its folder", NOT_GOOD
        ) from e
    except ValueError as e:
        first = str(e).splitlines()[0]
        raise SmokeError(
            f"{path} is not a smoke report ({first})", "see smoke/report/schema.json", NOT_GOOD
        ) from e


def html(report: Report) -> str:
    """The page: one file, no network, no script."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    groups: dict[str, list[Check]] = {}
    for c in report.checks:
        groups.setdefault(c.group, []).append(c)
    failures: dict[str, list[Check]] = {}
    for c in report.failures:  # one remedy is said once
        failures.setdefault(c.todo or "", []).append(c)
    return env.get_template("page.html.j2").render(
        r=report,
        plots=draw_all(report),
        groups=list(groups.items()),
        failures=list(failures.items()),
        binding=_binding(report),
        num=_num,
    )


def _binding(r: Report) -> list[tuple[str, str]]:
    b, e = r.bound, r.engine
    rows = {
        "preset": f"{b.preset} ({b.preset_status})",
        "preset sha256": b.preset_sha256,
        "machine class": b.machine,
        "hardware": b.hardware,
        "GPU": ", ".join(b.gpu),
        "driver": b.driver,
        "image": b.image,
        "image digest": b.image_digest,
        "target": b.target,
        "target revision": b.target_revision,
        "draft": b.draft,
        "draft revision": b.draft_revision,
        "engine": e.get("version"),
        "quantization": e.get("quantization"),
        "KV cache": e.get("kv_dtype"),
        "attention": e.get("attention"),
        "speculation": e.get("algorithm"),
        "token pool": e.get("pool_tokens"),
        "context": e.get("context_length"),
        "versions": ", ".join(f"{k} {v}" for k, v in b.versions.items()),
        "seed": b.seed,
        "admission": None
        if b.forced is None
        else f"forced: {'; '.join(b.forced)}"
        if b.forced
        else "not forced",
    }
    return [(k, str(v)) for k, v in rows.items() if v not in (None, "")]


def _num(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"
