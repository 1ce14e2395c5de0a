"""The user the container runs as (uid 10001, no shell), the folders it may write, and the `sparkserve` command."""

from __future__ import annotations

import os
from pathlib import Path

UID = 10001


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


if __name__ == "__main__":
    main()
