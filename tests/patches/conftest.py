"""A miniature sglang 0.5.23: a wheel of a few files, a series of three patches, made on the spot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from patches import edit, series, wheelfile
from patches.wheelfile import Member, Members

WHEEL = "sglang-0.5.23-py3-none-any.whl"

ALPHA = "".join(f"alpha = {i}\n" for i in range(1, 31))
BETA = "def beta():\n    return 1\n\n\ndef gamma():\n    return 2\n"
VERSION = (
    "__version__ = version = '0.5.23'\n__version_tuple__ = version_tuple = (0, 5, 23)\n__commit_id__ = None\n"
)

P01 = """Subject: prose before the diff is skipped

--- a/sglang/alpha.py
+++ b/sglang/alpha.py
@@ -2,5 +2,6 @@
 alpha = 2
 alpha = 3
 alpha = 4
+alpha = "P01"
 alpha = 5
 alpha = 6
"""
P02 = """--- a/sglang/alpha.py
+++ b/sglang/alpha.py
@@ -19,5 +19,5 @@
 alpha = 18
 alpha = 19
-alpha = 20
+alpha = "P02"
 alpha = 21
 alpha = 22
--- a/sglang/beta.py
+++ b/sglang/beta.py
@@ -1,5 +1,5 @@
 def beta():
-    return 1
+    return "P02"
{blank}
{blank}
 def gamma():
""".format(blank=" ")
P03 = """--- /dev/null
+++ b/sglang/new/delta.py
@@ -0,0 +1,2 @@
+DELTA = 3
+# the end
"""

TOML = """# kept: what this file is
[base]
version = "0.5.23"
[base.wheels]
"{wheel}" = "{sha}"

[series]
release = 4  # kept: why four

# kept: about P01
[[patch]]
id = "P01"
title = "Alpha | one"
why = "Because of\\n  alpha."
upstream = ["sglang#30119", "acme note"]
state = "carried"
contract = "contracts/test_p01_alpha.py"
drop_when = "upstream has it"
patch = "0001-p01.patch"

[[patch]]
id = "P02"
title = "Two files"
why = "Because."
upstream = []
state = "carried"  # kept: a comment
contract = "contracts/test_p02_two.py"
drop_when = "never"
patch = "0002-p02.patch"

[[patch]]
id = "P03"
title = "A new file"
why = "Because."
state = "carried"
contract = "contracts/test_p03_new.py"
drop_when = "never"
patch = "0003-p03.patch"

[[patch]]
id = "A01"
title = "Upstream has this"
why = "It must stay."
state = "upstream-since-0.5.17"
contract = "contracts/test_a01_stays.py"
drop_when = "never"
"""


@dataclass
class Mini:
    """The miniature: its series directory, its released wheel, and a place for output."""

    root: Path
    wheel: Path
    out: Path

    @property
    def series(self) -> series.Series:
        return series.load(self.root)

    def toml(self, old: str, new: str, count: int = 1) -> None:
        path = self.root / "series.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, count))

    def release(self, name: str, **files: str | None) -> Path:
        """Another release's wheel: the miniature with some files changed (or removed: None)."""
        members = members_of(name.split("-")[1])
        for path, text in files.items():
            key = "sglang/" + path.replace("__", "/") + ".py"
            if text is None:
                del members[key]
            else:
                members[key] = Member(text.encode())
        target = self.root.parent / "other" / name
        wheelfile.write(wheelfile.write_record(members), target)
        return target


def members_of(version: str) -> Members:
    info = f"sglang-{version}.dist-info"
    return {
        "sglang/__init__.py": Member(b"from sglang._version import __version__\n"),
        "sglang/_version.py": Member(
            VERSION.replace("0.5.23", version).replace("5, 23", version[2:].replace(".", ", ")).encode()
        ),
        "sglang/alpha.py": Member(ALPHA.encode()),
        "sglang/beta.py": Member(BETA.encode(), 0o100755),
        f"{info}/METADATA": Member(
            f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nVersion: {version}\n".encode()
        ),
        f"{info}/WHEEL": Member(
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{info}/RECORD": Member(b""),
    }


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    root, base = tmp_path / "patches", tmp_path / "base"
    root.mkdir()
    wheel = base / WHEEL
    wheelfile.write(wheelfile.write_record(members_of("0.5.23")), wheel)
    sha = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (root / "series.toml").write_text(TOML.format(wheel=WHEEL, sha=sha))
    for name, text in (("0001-p01", P01), ("0002-p02", P02), ("0003-p03", P03)):
        (root / f"{name}.patch").write_text(text)
    edit.refresh(root, wheelfile.read(wheel))
    return Mini(root, wheel, tmp_path / "out")
