"""Compile the kernels an image carries: `python docker/prebuild build --arch 12.0f --work DIR --out DIR`.

`build`    compiles the listed modules; finished ones are kept in WORK, so that a second run goes on
`install`  puts a built set where the engine looks: FlashInfer's data/aot, SGLang's JIT cache
`adopt`    gives a set built elsewhere the keys of this machine's compilers
`list`     what is listed for an architecture, and how that is known
`record`   prints the folder to put on PYTHONPATH so that a boot writes what it asks for into SPARK_RECORD
`merge`    makes a list of recordings, for `build --also`

Exit codes: 0 done; 1 a module failed, is left or lacks its architecture; 2 usage; 78 the list is not well formed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # also when run by `python -m` or imported

import inventory  # noqa: E402
import kernels as listing  # noqa: E402
import recordings  # noqa: E402


def say(text: str) -> None:
    print(text, flush=True)


def write(path: Path, data: Any) -> None:
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_text(json.dumps(data, indent=1) + "\n")
    tmp.replace(path)


def build(a: argparse.Namespace) -> int:
    kernels = listing.load(a.list, *a.also)
    modules = [m for m in kernels.of(a.arch) if not a.only or m.name in a.only or m.kind in a.only]
    if not modules:
        raise listing.KernelsError(f"nothing is listed for {a.arch} under {a.only or 'any name'}")
    a.work.mkdir(parents=True, exist_ok=True)
    import build as engine_side

    t0 = time.monotonic()
    b = engine_side.Builder(kernels, a.arch, a.work.resolve(), a.cuobjdump, say)
    rows = engine_side.run(b, modules, a.workers, a.seconds)
    bad = [r for r in rows if "error" in r or "left" in r]
    if a.out:
        a.out.mkdir(parents=True, exist_ok=True)
        for m, row in ((m, r) for m in modules for r in rows if r["name"] == m.name and r["kind"] == m.kind):
            if m.kind == "flashinfer" and row not in bad:
                target = a.out / "aot" / m.name
                target.mkdir(parents=True, exist_ok=True)
                so = next(p for p in b.store.root.glob(f"{m.name[:100]}-*/{m.name}.so") if _is(p, row))
                shutil.copy2(so, target / so.name)
        if b.jit.is_dir():
            _seed(b.jit, a.out / "jit")
            _jit_inventory(a.out / "jit", rows, kernels, a)
        bad = [r for r in rows if "error" in r or "left" in r]
    done = [r for r in rows if r not in bad and r["kind"] != "object"]
    record = {
        "schema": 1,
        "arch": a.arch,
        "tools": b.tools,
        "built": len(done),
        "listed": len(modules),
        "seconds": round(time.monotonic() - t0, 1),
        "bytes": sum(r.get("bytes", 0) for r in rows if r not in bad),
        "modules": sorted(rows, key=lambda r: (r["kind"], r["name"])),
    }
    if a.out:
        write(a.out / "kernels.json", record)
    say(
        f"{len(done)} of {len(modules)} modules for {a.arch} in {record['seconds']} s, {record['bytes'] / 1e6:.1f} MB"
    )
    return 1 if bad else 0


def _is(path: Path, row: dict[str, Any]) -> bool:
    return bool(json.loads((path.parent / "row.json").read_text())["sha256"] == row["sha256"])


def _seed(source: Path, target: Path) -> int:
    """Copy whole leaves (`deps-*`) of SGLang's cache that are not there yet; the number copied."""
    copied = 0
    for leaf in source.rglob("deps-*"):
        there = target / leaf.relative_to(source)
        if leaf.is_dir() and not there.exists():
            tmp = there.with_name(f".{there.name}.tmp")
            shutil.rmtree(tmp, ignore_errors=True)
            shutil.copytree(leaf, tmp, ignore=shutil.ignore_patterns("*.o", "*.d", ".ninja*"))
            tmp.replace(there)
            copied += 1
    return copied


def _jit_inventory(
    jit: Path, rows: list[dict[str, Any]], kernels: listing.Kernels, a: argparse.Namespace
) -> None:
    """Every object of SGLang's cache must hold the architecture's machine code; one row each."""
    for so in sorted(jit.rglob("*.so")):
        row: dict[str, Any] = {"kind": "object", "name": so.stem, "arch": a.arch, "bytes": so.stat().st_size}
        try:
            row["cubins"] = inventory.of(so, a.cuobjdump)
            inventory.check(so.stem, row["cubins"], kernels.arch[a.arch].accepts)
        except inventory.InventoryError as e:
            row["error"] = str(e)
            say(f"{a.arch:6} object     {so.stem[:70]:70} FAILED: {e}")
        rows.append(row)


def install(a: argparse.Namespace) -> int:
    import build as engine_side

    flashinfer = a.flashinfer or engine_side.site()
    n = 0
    for so in sorted((a.out / "aot").glob("*/*.so")):
        target = flashinfer / "data" / "aot" / so.parent.name
        target.mkdir(parents=True, exist_ok=True)
        tmp = target / f".{so.name}"
        shutil.copyfile(so, tmp)
        tmp.replace(target / so.name)
        n += 1
    leaves = _seed(a.out / "jit", a.jit) if a.jit and (a.out / "jit").is_dir() else 0
    say(
        f"{n} FlashInfer modules in {flashinfer / 'data' / 'aot'}, {leaves} SGLang objects new in {a.jit or '(none)'}"
    )
    return 0


def adopt(a: argparse.Namespace) -> int:
    import adopt as adopting

    import build as engine_side

    kernels = listing.load(a.list, *a.also)
    modules = [m for m in kernels.of(a.arch) if m.kind == "sglang" and (not a.only or m.name in a.only)]
    rows = adopting.adopt(
        modules, a.source / "jit", a.jit, kernels.arch[a.arch].capability, engine_side.value
    )
    for row in rows:
        say(f"{row['name'][:70]:70} {row['state']}")
    return 0 if any(r["state"] in ("adopted", "kept") for r in rows) else 1


def show(a: argparse.Namespace) -> int:
    for m in listing.load(a.list, *a.also).of(a.arch):
        say(f"{m.kind:10} {m.known:8} {m.name}\n{'':20}{m.seen}")
    return 0


def record(_a: argparse.Namespace) -> int:
    say(str(HERE.parents[1] / "launch" / "hook"))
    return 0


def merge(a: argparse.Namespace) -> int:
    arch = listing.load(a.list).arch
    if a.arch not in arch:
        raise listing.KernelsError(f"no architecture {a.arch}; there are {', '.join(sorted(arch))}")
    data = recordings.merged(recordings.read(a.folders), a.arch)
    data["arch"] = {a.arch: arch[a.arch].model_dump(mode="json")}
    write(a.out, data)
    say(f"{len(data['module'])} modules in {a.out}; {len(data['unknown'])} without a call that makes them")
    return 0


def main(argv: list[str] | None = None) -> int:
    ap = argparse.ArgumentParser(
        prog="prebuild", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    sub = ap.add_subparsers(dest="command", required=True)
    for name, f in (
        ("build", build),
        ("install", install),
        ("adopt", adopt),
        ("list", show),
        ("record", record),
        ("merge", merge),
    ):
        p = sub.add_parser(name)
        p.set_defaults(run=f)
        if name in ("build", "adopt", "list", "merge"):
            p.add_argument(
                "--list", type=Path, default=HERE.parent / "kernels.toml", help="default: docker/kernels.toml"
            )
            p.add_argument("--arch", required=True, help="12.0f, 12.1a or 9.0a")
        if name in ("build", "adopt", "list"):
            p.add_argument("--also", type=Path, action="append", default=[], help="a list made by `merge`")
        if name == "build":
            p.add_argument("--work", type=Path, required=True, help="kept between runs")
            p.add_argument("--out", type=Path, help="gets aot/, jit/ and kernels.json")
            p.add_argument(
                "--only", action="append", default=[], help="a module's name, or flashinfer or sglang"
            )
            p.add_argument("--workers", type=int, default=1, help="SGLang modules side by side")
            p.add_argument("--seconds", type=float, default=1e9, help="begin no module after this")
            p.add_argument("--cuobjdump", default="cuobjdump")
        if name == "adopt":
            p.add_argument(
                "--source", type=Path, required=True, help="a folder that `build` filled elsewhere"
            )
            p.add_argument("--jit", type=Path, required=True, help="SGLang's JIT cache here")
            p.add_argument("--only", action="append", default=[], help="a module's name")
        if name == "install":
            p.add_argument("--out", type=Path, required=True, help="a folder that `build` filled")
            p.add_argument("--flashinfer", type=Path, help="the package's folder; default: the installed one")
            p.add_argument("--jit", type=Path, help="SGLang's JIT cache")
        if name == "merge":
            p.add_argument("folders", type=Path, nargs="+", help="SPARK_RECORD folders")
            p.add_argument("--out", type=Path, required=True)
    a = ap.parse_args(argv)
    try:
        return int(a.run(a))
    except listing.KernelsError as e:
        print(f"prebuild: {e}", file=sys.stderr)
        return 78
    except OSError as e:
        print(f"prebuild: {e.filename}: {e.strerror}", file=sys.stderr)
        return 73


if __name__ == "__main__":
    sys.exit(main())
