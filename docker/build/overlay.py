"""Build step `engine`: turn the released SGLang in site-packages into the patched one, touching only what differs.

    overlay.py PATCHED_WHEEL

Installing the patched wheel the plain way would rewrite all of its 130 MB into a layer of its own; this writes the
patched files, their byte-code and the new metadata, so that a change of patches moves a small layer. The result is what
an installer would have made of the wheel; `python -m patches verify` checks it afterwards.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import zipfile
from pathlib import Path

from common import EPOCH, SITE, settle


def overlay(wheel: Path, site: Path) -> list[str]:
    """Write the wheel's files that differ from those in `site`; the names written."""
    old = next(site.glob("sglang-*.dist-info"))
    written = []
    with zipfile.ZipFile(wheel) as z:
        info = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA")).split("/")[0]
        gone = _gone(old, z)
        for name in z.namelist():
            target, data = site / name, z.read(name)
            if name.endswith("/") or (target.is_file() and target.read_bytes() == data):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            written.append(name)
    for name in gone:
        (site / name).unlink(missing_ok=True)
    if old.name != info:
        shutil.rmtree(old)
    (site / info / "INSTALLER").write_text("sparkserve\n")
    return written


def _gone(dist_info: Path, z: zipfile.ZipFile) -> list[str]:
    """Files of the released wheel that the patched one no longer has."""
    mine = set(z.namelist())
    rows = (dist_info / "RECORD").read_text().splitlines()
    names = {r.split(",")[0] for r in rows}
    return sorted(n for n in names if n.startswith("sglang/") and n not in mine and not n.endswith(".pyc"))


def settle_written(site: Path, names: list[str]) -> None:
    """Only what was written: touching a file of a lower layer would copy it into this one."""
    for name in names:
        path = site / name
        os.utime(path, (EPOCH, EPOCH))
        for folder in path.relative_to(site).parents:
            os.utime(site / folder, (EPOCH, EPOCH))


def main() -> None:
    written = overlay(Path(sys.argv[1]), SITE)
    settle_written(SITE, written)
    compiled = [py_compile.compile(str(SITE / n), doraise=True) for n in written if n.endswith(".py")]
    settle_written(SITE, written + [str(Path(c).relative_to(SITE)) for c in compiled if c])
    for info in SITE.glob("sglang-*.dist-info"):
        settle(info)
    os.utime(SITE, (EPOCH, EPOCH))
    print(f"overlay: {len(written)} files")


if __name__ == "__main__":
    main()
