"""HEALTHCHECK: one line with the state, exit 0 only when ready. Standard library only: it runs every ten seconds."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("SPARK_RUN", "/run/spark")) / "state.json"


def main() -> int:
    try:
        state = json.loads(STATE.read_text())
    except OSError:
        print("loading: the guard has not reported yet")
        return 1
    except ValueError:
        print("failed: the guard's state cannot be read")
        return 1
    line = f"{state['phase']} for {max(0, time.time() - state['since']):.0f} s"
    if state.get("step"):
        line += f": {state['step']}"
    if state.get("trip"):
        line += f" ({state['trip']['reason']}: {state['trip']['detail']})"
    print(line)
    return 0 if state["phase"] == "ready" else 1


if __name__ == "__main__":
    sys.exit(main())
