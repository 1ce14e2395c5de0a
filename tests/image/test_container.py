"""The container's promises, each tried with a real container (a mock engine inside, so that a boot takes seconds)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from launch.container import UID

from .conftest import BASE, IMAGE, PRESET

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

ASK = (
    "import httpx; r = httpx.post('http://127.0.0.1:30000/v1/completions', json={'prompt': 'x', 'mock_seconds': %s}, "
    "timeout=60); print(r.status_code, r.json()['choices'][0]['text'])"
)


def run_to_end(client, *argv):
    """(exit code, output) of a short-lived container with nothing mounted."""
    c = client.containers.run(
        IMAGE, list(argv), detach=True, network_mode="none", cap_drop=["ALL"], read_only=True
    )
    try:
        code = c.wait(timeout=120)["StatusCode"]
        return code, c.logs().decode()
    finally:
        c.remove(force=True, v=True)


@pytest.mark.usefixtures("image")
class TestCommands:
    def test_without_arguments_lists_presets_and_how_to_run_one(self, client):
        code, said = run_to_end(client)
        assert code == 0
        assert PRESET in said
        assert "docker run" in said

    def test_print_shows_the_command_and_ends(self, client):
        code, said = run_to_end(client, PRESET, "--print")
        assert code == 0
        assert "sglang.launch_server" in said

    def test_doctor_reports_on_the_machine_from_inside(self, client):
        code, said = run_to_end(client, "doctor")
        verdicts = [line.split()[0] for line in said.splitlines() if line.split()]
        assert {"PASS", "WARN", "FAIL"} & set(verdicts)
        assert code == (1 if "FAIL" in verdicts else 0), said
        assert not re.search(r"^\w+ +docker ", said, re.M)  # the host's Docker is not ours to judge
        assert "Traceback" not in said

    def test_unknown_preset_is_one_line_and_78(self, client):
        code, said = run_to_end(client, "tiny-w4a4-dflash3")
        assert code == 78
        assert "unknown preset 'tiny-w4a4-dflash3'" in said
        assert "tiny-w4a4-dflash2" in said
        assert "Traceback" not in said

    def test_provenance_names_patches_and_verifies_them_in_place(self, client):
        code, said = run_to_end(client, "provenance", "--json")
        assert code == 0
        found = json.loads(said)
        assert found["verified"] is True
        assert found["packages"]["sglang"].startswith("0.5.23+spark.")
        assert found["packages"]["nvidia-cuda-nvcc"].startswith("13.0.")
        assert {p["state"] for p in found["patches"]["patches"]} <= {"applied", "upstream"}
        assert any("nvidia" in p for p in found["proprietary"])

    def test_provenance_of_an_image_from_outside(self):
        argv = [sys.executable, "-m", "launch", "provenance", "--image", IMAGE]
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["verified"] is True
        assert found["base"]["digest"].startswith("sha256:")
        done = subprocess.run([*argv[:-1], BASE], capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert "is not an image of SparkServe" in done.stderr

    def test_sbom_lists_python_and_debian_parts(self, client):
        c = client.containers.run(
            IMAGE, entrypoint=["cat", "/etc/sparkserve/sbom.json"], detach=True, network_mode="none"
        )
        try:
            c.wait(timeout=60)
            sbom = json.loads(c.logs())
        finally:
            c.remove(force=True, v=True)
        assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
        purls = {p["purl"].split("@")[0] for p in sbom["components"]}
        assert {"pkg:pypi/torch", "pkg:pypi/sglang", "pkg:deb/debian/libc6"} <= purls

    def test_image_keeps_its_size_promise(self, client):
        assert client.images.get(IMAGE).attrs["Size"] < 8_000_000_000

    def test_nothing_of_the_build_secrets_stays(self, client):
        history = " ".join(h["CreatedBy"] for h in client.images.get(IMAGE).history())
        assert "BEGIN CERTIFICATE" not in history
        places = "('/run/secrets/ca', '/etc/pip.conf', '/etc/uv/uv.toml')"
        code = f"import os, sys; sys.exit(any(os.path.exists(p) for p in {places}))"
        c = client.containers.run(IMAGE, entrypoint=["python3", "-c", code], detach=True, network_mode="none")
        try:
            assert c.wait(timeout=60)["StatusCode"] == 0
        finally:
            c.remove(force=True, v=True)


def test_serves_and_stops_clean(start):
    box = start().ready()
    assert box.python(ASK % 0) == "200 ok"
    box.c.stop(timeout=60)
    assert box.exit_code() == 0


def test_runs_without_privilege_on_a_read_only_root(start):
    box = start().ready()
    code = (
        "import os\n"
        "print(os.getuid(), open('/proc/1/status').read().split('CapEff:')[1].split()[0])\n"
        "for p in ('/x', '/opt/sparkserve/x', '/opt/venv/x'):\n"
        "    try: open(p, 'w'); print('wrote', p)\n"
        "    except OSError: pass\n"
    )
    assert box.python(code) == "10001 0000000000000000"


def test_loading_says_phase_and_seconds(start):
    box = start(mock="serve", env={"SPARK_PROBE_S": "1", "MOCK_BOOT_S": "3"})
    seen = set()
    box.until(lambda: seen.add(box.health()) or any(s.startswith("ready") for s in seen), "ready")
    assert {s.split(" ")[0].rstrip(":") for s in seen} == {"loading", "ready"}
    assert all(re.match(r"loading: the guard|(loading|ready) for \d+ s", s) for s in seen), seen


def test_server_that_cannot_start_ends_with_70_and_the_cause(start):
    box = start(mock="die")
    assert box.exit_code() == 70
    said = box.logs()
    assert "no scale for layers.3.mlp" in said
    assert (
        said.strip()
        .splitlines()[-1]
        .startswith("ending with exit code 70: the server did not start in 2 tries")
    )


def test_crash_budget_ends_with_70(start):
    box = start(mock="crash", env={"SPARK_CRASHES": "1", "MOCK_CRASH_S": "2", "SPARK_PROBE_S": "1"})
    assert box.exit_code(180) == 70
    said = box.logs()
    assert "starting it again in 2 s" in said
    assert "ended while serving" in said.strip().splitlines()[-1]


def test_killed_child_brings_the_server_back_and_leaves_no_orphan(start):
    box = start(env={"SPARK_PROBE_S": "1"}).ready()
    before = box.pid()
    kill = (
        "import os, signal\n"
        "for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: words = open(f'/proc/{p}/cmdline').read().split(chr(0))\n"
        "    except OSError: continue\n"
        "    if 'mock-scheduler' in words: os.kill(int(p), signal.SIGKILL)\n"
    )
    box.python(kill)
    box.until(lambda: box.pid() != before and box.phase() == "ready", "back again")
    count = (
        "import os\n"
        "rows = (f'/proc/{p}/cmdline' for p in os.listdir('/proc') if p.isdigit())\n"
        "print(sum('mock-scheduler' in open(r).read().split(chr(0)) for r in rows))"
    )
    assert box.python(count) == "1"


def test_kill_9_of_the_launcher_leaves_no_second_engine(start):
    box = start(env={"SPARK_PROBE_S": "1"}).ready()
    before = box.pid()
    box.c.exec_run(
        ["sleep", "600"], detach=True
    )  # an operator's own: entered from outside, not left by the server
    box.python(f"import os; os.kill({before}, 9)")
    box.until(lambda: box.pid() != before and box.phase() == "ready", "back again")
    assert box.python(ASK % 0) == "200 ok"
    sleeping = (
        "import os; rows = (f'/proc/{p}/cmdline' for p in os.listdir('/proc') if p.isdigit());"
        "print(sum(open(r).read().startswith('sleep') for r in rows))"
    )
    assert box.python(sleeping) == "1"


def test_hang_is_found_by_a_real_generation_and_mended(start):
    box = start(env={"SPARK_PROBE_S": "1", "SPARK_HANG_S": "4"}).ready()
    before = box.pid()
    box.python("open('/run/spark/hang', 'w')")
    box.until(lambda: "the server hangs" in box.logs(), "hang noticed")
    box.python("import os; os.unlink('/run/spark/hang')")
    box.until(lambda: box.pid() != before and box.phase() == "ready", "back again")


def test_term_during_a_generation_lets_it_finish(start):
    box = start().ready()
    answer: list[str] = []
    ask = threading.Thread(target=lambda: answer.append(box.python(ASK % 4)))
    ask.start()
    time.sleep(1.5)
    box.c.stop(timeout=60)
    ask.join(30)
    assert box.exit_code() == 0
    assert answer == ["200 ok"]


def test_memory_floor_trips_with_75_and_no_restart(start):
    total = "import re; print(int(re.search(r'MemTotal:\\s+(\\d+)', open('/proc/meminfo').read())[1]) * 1024)"
    box = start().ready()
    floor = int(box.python(total)) - (1 << 20)
    box.c.stop(timeout=60)
    tripped = start(env={"SPARK_FLOOR_BYTES": str(floor)})
    assert tripped.exit_code() == 75
    said = tripped.logs()
    assert "guard: stopping the server: floor" in said
    assert (
        said.strip()
        .splitlines()[-1]
        .startswith("ending with exit code 75: the guard stopped the server: floor")
    )


def test_full_cache_volume_is_one_line_and_78(start):
    box = start(
        volumes={},
        tmpfs={"/cache": "uid=10001,gid=10001,size=4k", "/run/spark": "uid=10001,gid=10001", "/tmp": ""},
    )
    assert box.exit_code() == 78
    assert "init: cannot write /cache/" in box.logs()
    assert "No space left on device" in box.logs()
    assert "Traceback" not in box.logs()


def test_read_only_run_folder_is_one_line_and_78(start):
    box = start(tmpfs={"/tmp": ""})
    assert box.exit_code() == 78
    assert "tmpfs /run/spark" in box.logs()


def test_second_container_on_the_same_port_is_one_line_and_78(start):
    first = start(network="host").ready()
    second = start(network="host")
    assert second.exit_code() == 78
    assert "cannot listen on 0.0.0.0:30000" in second.logs()
    assert first.python(ASK % 0) == "200 ok"


def test_missing_key_file_is_78(start):
    box = start("--api-key-file", "/run/secrets/none")
    assert box.exit_code() == 78
    assert "/run/secrets/none" in box.logs()


def test_wrong_key_is_refused_and_the_right_one_is_in_no_argv_or_environment(start, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-mock-7f3a\n")
    os.chown(key, UID, UID)
    key.chmod(0o400)
    box = start(key_file=key, env={"SPARK_PROBE_S": "1"}).ready()
    ask = (
        "import httpx\n"
        "right = open('/run/secrets/api-key').read().strip()\n"
        "for k in ('', 'sk-wrong', right):\n"
        "    h = {'Authorization': 'Bearer ' + k} if k else {}\n"
        "    r = httpx.post('http://127.0.0.1:30000/v1/completions', json={'prompt': 'x'}, headers=h, timeout=60)\n"
        "    print(r.status_code)"
    )
    assert box.python(ask).split() == ["401", "401", "200"]
    leak = (
        "import os\n"
        "for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for f in ('cmdline', 'environ'):\n"
        "        try: text = open(f'/proc/{p}/{f}').read()\n"
        "        except OSError: continue\n"
        "        if 'sk-' + 'mock' in text: print(p, f, text)\n"
    )
    assert box.python(leak) == ""
    assert "sk-mock" not in box.logs()
    assert box.phase() == "ready"


def test_docker_s_own_health_reaches_healthy(start, client, image):
    check = client.images.get(image).attrs["Config"]["Healthcheck"]["Test"]
    box = start(
        healthcheck={"test": check, "interval": 10**9, "timeout": 5 * 10**9, "start_period": 1800 * 10**9}
    )

    def state() -> str:
        box.c.reload()
        return str(box.c.attrs["State"]["Health"]["Status"])

    assert state() == "starting"
    box.until(lambda: state() == "healthy", "healthy")
    assert box.c.attrs["State"]["Health"]["Log"][-1]["Output"].startswith("ready for ")


def test_read_only_model_mount_serves_and_is_not_written(start, tmp_path):
    hub = tmp_path / "hub"
    (hub / "hub").mkdir(parents=True)
    (hub / "hub" / "kept").write_text("x")
    box = start(hub=hub).ready()
    code = (
        "try: open('/models/hub/new', 'w'); print('written')\n"
        "except OSError as e: print(e.strerror)\n"
        "print(open('/models/hub/kept').read())"
    )
    assert box.python(code).splitlines() == ["Read-only file system", "x"]
    assert box.python(ASK % 0) == "200 ok"
    assert [p.name for p in (hub / "hub").iterdir()] == ["kept"]


def test_killed_guard_is_started_again_beside_the_same_server(start):
    box = start(env={"SPARK_PROBE_S": "1"}).ready()
    before = box.pid()
    find = (
        "import os, signal\n"
        "for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "    if 'launch.guard' in open(f'/proc/{p}/cmdline').read().split(chr(0)): print(p); SIGNAL\n"
    )
    first = box.python(find.replace("SIGNAL", "os.kill(int(p), signal.SIGKILL)"))
    assert first.isdigit()
    box.until(lambda: box.python(find.replace("SIGNAL", "")) not in {"", first}, "another guard")
    box.until(lambda: box.phase() == "ready", "ready again")
    assert box.pid() == before
    assert "keeper: the guard ended (exit code" in box.logs()


def test_guard_that_cannot_run_ends_the_container_with_78(start):
    box = start(env={"SPARK_FLOOR_BYTES": "much"})
    assert box.exit_code() == 78
    said = box.logs()
    assert "SPARK_FLOOR_BYTES=much" in said
    assert said.strip().splitlines()[-1] == "ending with exit code 78: the guard cannot run (exit code 78)"


def test_json_lines_are_whole(start):
    box = start(env={"SPARK_LOG": "json"}).ready()
    box.c.stop(timeout=60)
    box.exit_code()
    rows = [json.loads(line) for line in box.logs().splitlines() if line.startswith("{")]
    assert any("ready after" in r["line"] for r in rows)
    assert all(set(r) == {"t", "line"} for r in rows)


PLANTED = (
    "import httpx; b = {'model': 'x', 'messages': [{'role': 'user', 'content': 'Hi'}], 'temperature': 0, 'max_tokens': 32,"
    " 'chat_template_kwargs': {'enable_thinking': False}}; "
    "print(httpx.post('http://127.0.0.1:30000/v1/chat/completions', json=b, timeout=120)"
    ".json()['choices'][0]['message']['content'])"
)
SCHEDULERS = (
    "import os, signal\n"
    "def words(p):\n"
    "    try: return open(f'/proc/{p}/cmdline').read()\n"
    "    except OSError: return ''\n"
    "found = [int(p) for p in os.listdir('/proc') if p.isdigit() and words(p).startswith('sglang::scheduler')]\n"
)


def test_real_engine_answers_hangs_and_comes_back(start):
    """The planted answer; then its scheduler is stopped, as a wedged GPU stops it, and all is mended without a hand."""
    box = start(mock=None, env={"SPARK_PROBE_S": "2", "SPARK_HANG_S": "20"}).ready(600)
    assert box.python(PLANTED) == "Hello! How can I help you today?"
    before, phases = box.pid(), set()
    assert box.python(SCHEDULERS + "[os.kill(p, signal.SIGSTOP) for p in found]; print(len(found))") == "1"
    box.until(lambda: phases.add(box.phase()) or "the server hangs" in box.logs(), "hang noticed", 180)
    box.until(lambda: phases.add(box.phase()) or box.pid() != before, "started again", 180)
    assert "wedged" in phases
    box.until(lambda: box.phase() == "ready", "ready again", 600)
    assert box.python(PLANTED) == "Hello! How can I help you today?"
    assert box.python(SCHEDULERS + "print(len(found))") == "1"
    box.c.stop(timeout=60)
    assert box.exit_code() == 0


LIMIT = {"mem_limit": 3 << 29, "memswap_limit": 3 << 29}


def test_start_that_does_not_fit_the_limit_is_75_with_the_arithmetic(start):
    box = start(**LIMIT)
    assert box.exit_code() == 75
    said = box.logs()
    assert "tiny-w4a4-dflash2@cpu is not admitted" in said
    assert "GiB planned and a floor of 0.5 GiB are more than the" in said
    assert "sglang" not in said.split("is not admitted")[1]


def test_force_is_in_the_state_and_in_the_metrics(start):
    box = start("--force", env={"SPARK_PROBE_S": "1"}, **LIMIT).ready()
    state = json.loads(box.python("print(open('/run/spark/state.json').read())"))
    assert "planned and a floor" in state["forced"][0]
    ask = "import httpx; r = httpx.get('http://127.0.0.1:30001/%s'); print(r.status_code, r.text)"
    assert "sparkserve_forced_reasons 1.0" in box.python(ask % "metrics")


def test_one_endpoint_for_guard_and_engine_and_a_health_code(start):
    box = start(env={"SPARK_PROBE_S": "1"}).ready()
    ask = "import httpx; r = httpx.get('http://127.0.0.1:30001/%s'); print(r.status_code, r.text)"
    assert box.python(ask % "healthz").startswith("200 ready for ")
    seen = box.python(ask % "metrics")
    assert 'sparkserve_phase{phase="ready"} 1.0' in seen
    assert "sparkserve_engine_up 1" in seen
    assert "sglang:num_running_reqs 0" in seen
    before = box.pid()
    box.python(f"import os; os.kill({before}, 9)")
    box.until(lambda: box.python(ask % "healthz").startswith("503 loading"), "503 while it restarts")
