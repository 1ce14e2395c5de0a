"""What the image we run in is made of: its manifest, and the patches checked again where they lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch.errors import CheckFailed, ConfigError
from launch.paths import repo_root


def manifest_path() -> Path:
    return Path(os.environ.get("SPARKSERVE_MANIFEST") or "/etc/sparkserve/manifest.json")


def read() -> dict[str, Any]:
    """The manifest with `verified` added. ConfigError outside an image, CheckFailed when a patch is not in place."""
    path = manifest_path()
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"no manifest at {path}: run it in the image (docker run IMAGE provenance)"
        ) from None
    except ValueError as e:
        raise ConfigError(f"{path} cannot be read: {e}") from None
    argv = [sys.executable, "-m", "patches", "verify", sys.prefix]
    done = subprocess.run(argv, cwd=repo_root(), capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CheckFailed(
            f"the engine in this image is not the one it was built with: {said[-1] if said else '?'}"
        )
    return {**found, "verified": True}


def table(found: dict[str, Any]) -> str:
    """For an operator: versions, base, locks, patches."""
    rows = [
        f"version       {found['version']} ({found['revision'][:12]}), {found['target']}, {found['architecture']}",
        f"base          {found['base']['image']} ({found['base']['os']})",
        f"python        {found['python']}",
        *[f"{name:<24}{version}" for name, version in sorted(found["packages"].items())],
        *[f"lock          {name} {digest[:16]}" for name, digest in sorted(found["locks"].items())],
        f"contents      {found['counts']['python']} Python distributions, {found['counts']['debian']} Debian packages",
        f"proprietary   {', '.join(found['proprietary'])}",
        "patches, checked in place:",
        *[f"  {p['id']}  {p['state']:<9} {p['title']}" for p in found["patches"]["patches"]],
    ]
    return "\n".join(rows)
