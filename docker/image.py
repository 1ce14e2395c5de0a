"""Build the image and say what came out: `python docker/image.py build|report` (what `make image` and `make image-report` run).

`build` finds a Docker CLI that can BuildKit (buildx, or Debian's own CLI with DOCKER_BUILDKIT=1), builds one architecture, and
writes sizes, versions and seconds to `build/image-<target>-<arch>.json`. `report` compares such a file with an earlier one,
layer by layer: by default the last build with the newest of its architecture in `evidence/`. Exit codes: 0 done, 69 no Docker
engine, 70 the build failed, 78 the image is larger than it may be or a report is not there.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 8_000_000_000  # bytes unpacked; peers ship 30 to 39 GB
PACKED_LIMIT = 3_600_000_000  # bytes as `zstd -3` packs it
DEFAULT_BASE = "debian:trixie-slim"
CLIENTS = ("docker", "/usr/bin/docker", "/usr/local/bin/docker")


class ImageError(Exception):
    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


def client() -> tuple[list[str], dict[str, str]]:
    """(argv prefix of a building command, environment): buildx where it is, else a CLI with BuildKit built in."""
    for name in CLIENTS:
        path = shutil.which(name)
        if path is None:
            continue
        if _works([path, "buildx", "version"]):
            return [path, "buildx", "build", "--load"], dict(os.environ)
        env = {**os.environ, "DOCKER_BUILDKIT": "1"}
        said = subprocess.run([path, "build", "--help"], capture_output=True, text=True, check=False, env=env)
        if said.returncode == 0 and "--secret" in said.stdout:
            return [path, "build"], env
    raise ImageError(69, "no Docker CLI with BuildKit: apt-get install docker.io (or docker-buildx)")


def _works(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def secrets() -> list[str]:
    """Optional build secrets from the environment: SPARK_BUILD_CA, _PIP, _UV, _APT name files. Nothing of them stays."""
    out = []
    for name, variable in (("ca", "CA"), ("pip", "PIP"), ("uvconf", "UV"), ("apt", "APT")):
        file = os.environ.get(f"SPARK_BUILD_{variable}")
        if file:
            out += ["--secret", f"id={name},src={file}"]
    return out


def pinned(base: str) -> str:
    """The base by digest, so that the manifest says what was built on; a local image keeps its name."""
    if "@sha256:" in base:
        return base
    docker = shutil.which("docker") or "docker"
    subprocess.run([docker, "pull", "--quiet", base], capture_output=True, check=False)
    found = subprocess.run(
        [docker, "image", "inspect", "-f", '{{join .RepoDigests " "}}', base],
        capture_output=True,
        text=True,
        check=False,
    )
    digests = found.stdout.split()
    return digests[0] if found.returncode == 0 and digests else base


def digest(base: str) -> str:
    """What a base was: its registry digest, or the id of an image that no registry knows (a debootstrap)."""
    if "@" in base:
        return base.partition("@")[2]
    docker = shutil.which("docker") or "docker"
    argv = [docker, "image", "inspect", "-f", "{{.Id}}", base]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def revision() -> str:
    argv = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def build(target: str, base: str, tag: str, platform: str | None, kernels: str = "none") -> dict[str, Any]:
    argv, env = client()
    argv += ["--file", "docker/Dockerfile", "--network", "host", "--progress", "plain", "--tag", tag]
    base = pinned(base)
    argv += ["--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"BASE_DIGEST={digest(base)}"]
    argv += ["--build-arg", f"TARGET={target}", "--build-arg", f"KERNELS={kernels}"]
    argv += ["--build-arg", f"REVISION={revision()}", *secrets()]
    if platform:
        argv += ["--platform", platform]
    (ROOT / "build" / "fixtures").mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if subprocess.run([*argv, "."], cwd=ROOT, env=env, check=False).returncode:
        raise ImageError(70, "the image build failed (see above)")
    return describe(tag, round(time.monotonic() - start, 1))


def describe(tag: str, seconds: float) -> dict[str, Any]:
    """Size, layers and manifest of a built image, and the machine that built it."""
    import docker  # the SDK; this folder is no package

    client = docker.from_env(timeout=300)
    image = client.images.get(tag)
    layers = [
        {"bytes": h["Size"], "made_by": " ".join(h["CreatedBy"].split())[:160]}
        for h in reversed(image.history())
        if h["Size"]
    ]
    attrs = image.attrs
    return {
        "tag": tag,
        "id": image.id,
        "layer_digests": attrs["RootFS"]["Layers"],
        "architecture": attrs["Architecture"],
        "bytes": attrs["Size"],
        "seconds": seconds,
        "labels": image.labels,
        "layers": layers,
        "manifest": manifest(client, image.id),
        "host": {
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "machine": os.uname().machine,
            "docker": client.version()["Version"],
        },
    }


def manifest(client: Any, image: str) -> dict[str, Any]:
    """The manifest inside an image, read without running it: that works for another architecture too."""
    box = client.containers.create(image, network_mode="none")
    try:
        parts, _ = box.get_archive("/etc/sparkserve/manifest.json")
        with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as tar:
            member = tar.extractfile("manifest.json")
            assert member is not None
            found: dict[str, Any] = json.load(member)
            return found
    finally:
        box.remove(v=True)


def compressed(tag: str) -> int:
    """Bytes of the image as `zstd -3` packs it: about what a registry transfers. Minutes."""
    docker = shutil.which("docker") or "docker"
    if shutil.which("zstd") is None:
        raise ImageError(78, "--compressed needs zstd: apt-get install zstd")
    with (
        subprocess.Popen([docker, "save", tag], stdout=subprocess.PIPE) as saved,
        subprocess.Popen(["zstd", "-3", "-q", "-c"], stdin=saved.stdout, stdout=subprocess.PIPE) as packed,
    ):
        assert packed.stdout is not None
        total = 0
        while chunk := packed.stdout.read(1 << 20):
            total += len(chunk)
    if saved.returncode or packed.returncode:
        raise ImageError(70, f"docker save {tag} failed")
    return total


def too_large(found: dict[str, Any]) -> list[str]:
    """One line per limit that a build passes; the packed size counts where it was measured."""
    out = []
    for key, limit, what in (("bytes", LIMIT, "unpacked"), ("zstd3_bytes", PACKED_LIMIT, "packed")):
        if found.get(key, 0) > limit:
            out.append(f"{found[key] / 1e9:.2f} GB {what}, more than {limit / 1e9:.1f} GB: see its layers")
    return out


def latest(folder: Path, architecture: str) -> Path:
    """The newest kept report of an architecture, by the date in its name."""
    found = sorted(folder.glob(f"image-{architecture}-*.json"))
    if not found:
        raise ImageError(78, f"no image-{architecture}-*.json in {folder}: name the report to compare with")
    return found[-1]


def compare(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """One line per layer whose size differs, and the totals."""
    out = [f"total {new['bytes'] / 1e9:.2f} GB (before {old['bytes'] / 1e9:.2f} GB)"]
    before = {layer["made_by"]: layer["bytes"] for layer in old["layers"]}
    for layer in new["layers"]:
        was = before.pop(layer["made_by"], None)
        if was != layer["bytes"]:
            was_text = "new" if was is None else f"was {was / 1e6:.1f} MB"
            out.append(f"{layer['bytes'] / 1e6:10.1f} MB ({was_text})  {layer['made_by'][:90]}")
    out += [f"      gone ({size / 1e6:.1f} MB)  {by[:90]}" for by, size in before.items()]
    return out


def report(new: Path | None, old: Path | None) -> int:
    """Print how a build differs from an earlier one; 78 when it is too large."""
    if new is None:
        builds = sorted((ROOT / "build").glob("image-gpu-*.json"), key=lambda f: f.stat().st_mtime)
        if not builds:
            raise ImageError(78, "no build/image-gpu-*.json: run `make image` first or name a report")
        new = builds[-1]
    found = json.loads(new.read_text())
    old = old or latest(ROOT / "evidence", found["architecture"])
    print(f"{new} against {old}", *compare(found, json.loads(old.read_text())), sep="\n")
    for line in too_large(found):
        print(f"image: {line} in {new.name}", file=sys.stderr)
    return 78 if too_large(found) else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = parser.add_subparsers(dest="command", required=True)
    b = sub.add_parser("build", help="build one architecture")
    b.add_argument("--target", choices=("gpu", "cpu"), default="gpu", help="cpu: tests only, never published")
    b.add_argument("--base", default=os.environ.get("BASE_IMAGE") or DEFAULT_BASE)
    b.add_argument("--tag", default="sparkserve:dev")
    b.add_argument(
        "--compressed",
        action=argparse.BooleanOptionalAction,
        help="measure the packed size too, a minute or two (default: for the gpu target, where zstd is installed)",
    )
    b.add_argument(
        "--kernels",
        choices=("all", "none"),
        default=os.environ.get("KERNELS") or "none",
        help="all: prebuild docker/kernels.toml too, about an hour on two cores the first time (default: $KERNELS or none)",
    )
    b.add_argument("--platform", choices=("linux/amd64", "linux/arm64"))
    r = sub.add_parser("report", help="compare two build reports")
    r.add_argument("new", type=Path, nargs="?", help="default: the last build of the GPU image")
    r.add_argument("old", type=Path, nargs="?", help="default: the newest of its architecture in evidence/")
    args = parser.parse_args(argv)
    try:
        if args.command == "report":
            return report(args.new, args.old)
        found = build(args.target, args.base, args.tag, args.platform, args.kernels)
        packed = args.compressed
        if packed is None:  # what is published is held to both limits; the other target is not
            packed = args.target == "gpu" and shutil.which("zstd") is not None
        if packed:
            found["zstd3_bytes"] = compressed(args.tag)
    except ImageError as e:
        print(f"image: {e}", file=sys.stderr)
        return e.code
    except (OSError, ValueError) as e:
        print(f"image: {e}", file=sys.stderr)
        return 78
    out = ROOT / "build" / f"image-{args.target}-{found['architecture']}.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    size = f"{found['bytes'] / 1e9:.2f} GB"
    if "zstd3_bytes" in found:
        size += f" ({found['zstd3_bytes'] / 1e9:.2f} GB packed)"
    print(f"image: {found['tag']} {size} in {found['seconds']} s ({out.relative_to(ROOT)})")
    for line in too_large(found):
        print(f"image: {line} in {out.name}", file=sys.stderr)
    return 78 if too_large(found) else 0


if __name__ == "__main__":
    sys.exit(main())
