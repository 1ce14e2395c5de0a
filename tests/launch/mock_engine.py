#!/usr/bin/env python3
"""Stands in for the engine's interpreter in tests of `sparkserve serve`: same arguments, SGLang's log lines.

MOCK_ENGINE chooses what happens: serve | die | die-ready | silent | echo-only | mute | stubborn.
MOCK_PIDS names a file that receives the pids of this process and of its child. MOCK_INFO is what /server_info answers.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

mode = os.environ.get("MOCK_ENGINE", "serve")
argv = sys.argv[1:]


def option(name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def log(text: str) -> None:
    print(f"[2026-11-30 12:00:00] {text}", flush=True)


key = None
config = option("--config")
if config:
    assert (Path(config).stat().st_mode & 0o777) == 0o600
    key = Path(config).read_text().split(":", 1)[1].strip()[1:-1].replace("''", "'")

if mode == "silent":
    sys.exit(3)

if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A child like the scheduler: same group, and mostly deaf to TERM.
deaf = "SIG_DFL" if mode == "mute" else "SIG_IGN"
code = f"import signal, time; signal.signal(15, signal.{deaf}); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
pids = os.environ.get("MOCK_PIDS")
if pids:
    Path(pids).write_text(json.dumps([os.getpid(), child.pid]))

log(f"server_args={{'api_key': {key!r}, 'argv': {argv!r}}}")
log("Load weight begin. avail mem=90.00 GB")
print(
    "Loading safetensors checkpoint shards:  50% Completed | 1/2\rLoading safetensors checkpoint shards: 100% Completed"
)
log("Load weight end. type=Qwen3_5ForConditionalGeneration")

if mode == "die":
    log("Scheduler hit an exception: Traceback (most recent call last):")
    print('  File "scheduler.py", line 1, in run')
    print("ValueError: the checkpoint has no scale for layers.3.mlp", flush=True)
    log("Received sigquit from a child process. It usually means the child failed.")
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "mute":
    time.sleep(600)


warming = ["503 at first"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/server_info":
            self.answer(200, json.loads(os.environ.get("MOCK_INFO", "{}")))
            return
        self.answer(503 if self.path == "/health" and warming and warming.pop() else 200, {})

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.answer(401, {"error": "Unauthorized"})
        else:
            self.answer(200, {"choices": [{"text": " 4"}], "usage": {"completion_tokens": 1}})
        if mode == "die-ready":
            threading.Timer(0.3, os._exit, (9,)).start()

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler)
log("The server is fired up and ready to roll!")
server.serve_forever()
