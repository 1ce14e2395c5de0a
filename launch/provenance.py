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


def read_image(client: Any, image: str) -> dict[str, Any]:
    """The same from outside: run the image's own `provenance`, with no network and nothing mounted.

    `client` is a Docker SDK client. The image's id is added as `image`. ConfigError when there is no such image or it is
    not one of ours, CheckFailed when the image finds its own patches not in place.
    """
    import docker.errors

    try:
        found = client.images.get(image)
    except docker.errors.ImageNotFound:
        raise ConfigError(f"there is no image {image}: build it (make image) or pull it") from None
    if "io.sparkserve.target" not in (found.labels or {}):
        raise ConfigError(f"{image} is not an image of SparkServe (it has no label io.sparkserve.target)")
    box = client.containers.create(
        found.id, ["provenance", "--json"], network_mode="none", read_only=True, cap_drop=["ALL"]
    )
    try:
        box.start()
        code = box.wait(timeout=300)["StatusCode"]
        said = box.logs(stdout=True, stderr=False).decode(errors="replace")
        complaint = box.logs(stdout=False, stderr=True).decode(errors="replace").strip().splitlines()
    finally:
        box.remove(force=True, v=True)
    if code:
        last = complaint[-1].removeprefix("error: ") if complaint else f"exit code {code}"
        raise (CheckFailed if code == CheckFailed.exit_code else ConfigError)(f"{image}: {last}")
    data: dict[str, Any] = json.loads(said)
    return {**data, "image": found.id}


def table(found: dict[str, Any]) -> str:
    """For an operator: versions, base, locks, patches."""
    rows = [
        f"version       {found['version']} ({found['revision'][:12]}), {found['target']}, {found['architecture']}",
        *([f"image         {found['image']}"] if "image" in found else []),
        f"base          {found['base']['image']} ({found['base']['os']})",
        f"base digest   {found['base'].get('digest') or 'not known'}",
        f"python        {found['python']}",
        *[f"{name:<24}{version}" for name, version in sorted(found["packages"].items())],
        *[f"lock          {name} {digest[:16]}" for name, digest in sorted(found["locks"].items())],
        f"contents      {found['counts']['python']} Python distributions, {found['counts']['debian']} Debian packages",
        f"proprietary   {', '.join(found['proprietary'])}",
        f"no licence    {', '.join(found['licence_not_stated']) or 'none'} (not stated; files in licences.json)",
        "patches, checked in place:",
        *[f"  {p['id']}  {p['state']:<9} {p['title']}" for p in found["patches"]["patches"]],
    ]
    return "\n".join(rows)
