"""Shared by the build steps: where Python's packages lie, and timestamps that do not differ from build to build."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

VENV = Path("/opt/venv")
SITE = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
ARCH = platform.machine()
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH") or 1767225600)


def settle(root: Path) -> None:
    """Give everything below `root` the build's epoch as its time, so that equal contents make equal layers."""
    for folder, dirs, files in os.walk(root):
        for name in [*files, *dirs]:
            os.utime(os.path.join(folder, name), (EPOCH, EPOCH), follow_symlinks=False)  # noqa: PTH118
    os.utime(root, (EPOCH, EPOCH))
