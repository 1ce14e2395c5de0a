"""Write what the image is made of: `manifest.json`, `licences.json` and a CycloneDX 1.6 `sbom.json`, into the folder given.

The manifest is for an operator (`sparkserve provenance`): versions, the patch series with its hashes, locks, build inputs.
The SBOM lists every Python distribution and Debian package with version, licence and package URL.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata as md
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from common import ARCH, EPOCH, SITE

NAMED = ("sglang", "torch", "flashinfer-python", "sglang-kernel", "triton", "nvidia-cuda-nvcc", "supervisor")
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|EULA)", re.I)
PROPRIETARY = re.compile(r"NVIDIA|Proprietary", re.I)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def distributions() -> list[dict[str, Any]]:
    """name, version, licence as stated ("" when it states none) and licence files of every Python distribution, by name.

    The files are relative to the distribution's .dist-info folder: where a licence is not stated, they are what there is.
    """
    found = {}
    for d in md.distributions(path=[str(SITE)]):
        meta = d.metadata
        text = meta["License-Expression"] or _classifier(meta) or (meta["License"] or "").strip().split("\n")[0]
        found[meta["Name"].lower()] = {
            "name": meta["Name"],
            "version": d.version,
            "licence": text[:120],
            "licence_files": _licence_files(d),
        }
    return [found[k] for k in sorted(found)]


def _classifier(meta: Any) -> str:
    kinds = [c.rsplit(" :: ", 1)[-1] for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    return " AND ".join(k for k in kinds if k != "OSI Approved")


def _licence_files(d: md.Distribution) -> list[str]:
    info = Path(str(d._path))  # type: ignore[attr-defined]  # the only way to the folder
    found = (p for p in info.rglob("*") if p.is_file())
    return sorted(str(p.relative_to(info)) for p in found if LICENCE_FILE.match(p.name))


def licences(python: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The inventory: every distribution under its licence as stated, those that state none under "not stated"."""
    found: dict[str, list[dict[str, Any]]] = {}
    for p in python:
        row = {"name": p["name"], "version": p["version"]}
        if not p["licence"]:
            row["files"] = p["licence_files"]
        found.setdefault(p["licence"] or "not stated", []).append(row)
    return found


def debian() -> list[dict[str, str]]:
    form = "${Package}\t${Version}\t${Architecture}\n"
    out = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in out.splitlines()]
    return [{"name": n, "version": v, "arch": a} for n, v, a in sorted(rows)]


def patch_state() -> Any:
    """What `python -m patches verify --json` says of the installed engine."""
    argv = [sys.executable, "-m", "patches", "verify", str(SITE), "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd="/opt/sparkserve")
    if done.returncode:
        sys.exit(f"manifest: the engine is not whole: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


def sbom(python: list[dict[str, Any]], deb: list[dict[str, str]]) -> dict[str, Any]:
    """CycloneDX 1.6. The serial number is derived from the contents, so that equal images have equal SBOMs."""
    components: list[dict[str, Any]] = []
    for p in python:
        c: dict[str, Any] = {"type": "library", "name": p["name"], "version": p["version"]}
        purl_name = re.sub(r"[-_.]+", "-", p["name"]).lower()
        c["purl"] = c["bom-ref"] = f"pkg:pypi/{purl_name}@{p['version'].replace('+', '%2B')}"
        if p["licence"]:
            c["licenses"] = [{"license": {"name": p["licence"]}}]
        components.append(c)
    for d in deb:
        purl = f"pkg:deb/debian/{d['name']}@{d['version'].replace('+', '%2B')}?arch={d['arch']}"
        components.append(
            {"type": "library", "name": d["name"], "version": d["version"], "purl": purl, "bom-ref": purl}
        )
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "sparkserve", "bom-ref": "sparkserve"}},
        "components": components,
    }


def kernels(folder: Path = Path("/opt/sparkserve-kernels")) -> Any:
    """The prebuilt modules with the architectures whose machine code each holds; nothing in an image without any."""
    try:
        made = json.loads((folder / "kernels.json").read_text())
    except FileNotFoundError:
        return None
    named = ("kind", "name", "cubins", "sha256", "bytes")
    rows = [{k: m[k] for k in named if k in m} for m in made["modules"]]
    return {"arch": made["arch"], "built": made["built"], "listed": made["listed"], "modules": rows}


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    path.chmod(0o644)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("base", "base-digest", "target", "version", "revision"):
        ap.add_argument(f"--{name}", required=True)
    ap.add_argument("--locks", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    a = ap.parse_args()
    python, deb = distributions(), debian()
    by_name = {p["name"].lower(): p for p in python}
    a.out.mkdir(parents=True, exist_ok=True)
    lines = (line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    release = {k: v.strip('"') for k, v in lines}
    manifest = {
        "schema": 1,
        "target": a.target,
        "version": a.version,
        "revision": a.revision,
        "architecture": ARCH,
        "base": {
            "image": a.base,
            "digest": a.base_digest or a.base.partition("@")[2],
            "os": release.get("PRETTY_NAME", ""),
        },
        "python": ".".join(map(str, sys.version_info[:3])),
        "source_date_epoch": EPOCH,
        "packages": {n: by_name[n]["version"] for n in NAMED if n in by_name},
        "patches": patch_state(),
        "locks": {p.name: sha256(p) for p in sorted(a.locks.glob(f"*-cp313-{ARCH}.txt"))},
        "counts": {"python": len(python), "debian": len(deb)},
        "proprietary": [f"{p['name']} {p['version']}" for p in python if PROPRIETARY.search(p["licence"])],
        "kernels": kernels(),
        "licence_not_stated": [p["name"] for p in python if not p["licence"]],
    }
    write(a.out / "manifest.json", manifest)
    write(a.out / "sbom.json", sbom(python, deb))
    write(a.out / "licences.json", licences(python))


if __name__ == "__main__":
    main()
