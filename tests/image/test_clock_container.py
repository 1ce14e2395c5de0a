"""A stepped wall clock in a real container: supervisord, keeper, guard and server all see it (a library is preloaded)."""

from __future__ import annotations

import re
import time

import pytest

from .conftest import MOCK

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

YEAR = 86400 * 365
OURS = "uid=10001,gid=10001"


@pytest.fixture
def stepped(client, image, tmp_path):
    """Where the library lies on the host, compiled by the compiler that the image carries."""
    tmp_path.chmod(0o755)
    said = client.containers.run(
        image,
        ["-shared", "-fPIC", "-o", "/out/step.so", "/mock/step.cc"],
        entrypoint=["g++"],
        user="0",
        network_mode="none",
        remove=True,
        stderr=True,
        volumes={str(MOCK): {"bind": "/mock", "mode": "ro"}, str(tmp_path): {"bind": "/out", "mode": "rw"}},
    )
    assert said == b""
    return tmp_path


def answered(box) -> int:
    """Generations of this server so far: the guard's probes."""
    code = "import httpx; print(httpx.get('http://127.0.0.1:30000/metrics', timeout=60).text)"
    found = re.search(r"mock:answered (\d+)", box.python(code))
    assert found
    return int(found[1])


def test_step_changes_nothing_and_a_hang_after_it_is_still_found(start, stepped):
    preload = {"SPARK_PROBE_S": "1", "SPARK_HANG_S": "4", "LD_PRELOAD": "/step/step.so"}
    mounts = {
        str(MOCK): {"bind": "/mock", "mode": "ro"},
        str(stepped): {"bind": "/step", "mode": "ro"},
    }
    box = start(env=preload, volumes=mounts, tmpfs={"/cache": OURS, "/run/spark": OURS, "/tmp": ""}).ready()
    before = box.pid()
    for step in (YEAR, -YEAR):
        box.python(f"open('/run/spark/clock-step', 'w').write('{step}')")
        assert abs(float(box.python("import time; print(time.time())")) - time.time() - step) < 3600
        seen = answered(box)
        box.until(lambda seen=seen: answered(box) >= seen + 6, "probes go on")
        assert box.health().startswith("ready for ")
        assert (box.pid(), box.phase()) == (before, "ready")
        assert "hangs" not in box.logs()
    box.python("open('/run/spark/hang', 'w')")
    box.until(lambda: "the server hangs" in box.logs(), "hang noticed")
    box.python("import os; os.unlink('/run/spark/hang'); open('/run/spark/clock-step', 'w').write('0')")
    box.until(lambda: box.pid() != before and box.phase() == "ready", "back again")
    box.python(f"open('/run/spark/clock-step', 'w').write('{-YEAR}')")  # while it stops, too
    box.c.stop(timeout=60)
    assert box.exit_code() == 0
