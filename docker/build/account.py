"""The user the container runs as (uid 10001, no shell), the folders it may write, and the `sparkserve` command.

The names of its sub-commands are written beside init.py, which tells them from presets without starting Python for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

UID = 10001
HOME = Path("/opt/sparkserve")


def main() -> None:
    for file, line in (
        ("/etc/passwd", f"spark:x:{UID}:{UID}::/cache/home:/usr/sbin/nologin\n"),
        ("/etc/group", f"spark:x:{UID}:\n"),
    ):
        path = Path(file)
        path.write_text(path.read_text() + line)
    for folder in ("/cache", "/models", "/run/spark"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.chown(folder, UID, UID)
    command = Path("/usr/local/bin/sparkserve")
    command.write_text("#!/opt/venv/bin/python3\nimport sys\n\nfrom launch.cli import main\n\nsys.exit(main())\n")
    command.chmod(0o755)
    argv = [sys.executable, "-m", "launch", "commands"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=HOME).stdout
    (HOME / "rt" / "commands").write_text(said)


if __name__ == "__main__":
    main()
