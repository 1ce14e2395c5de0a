"""A server with SGLang's shape: a main process, a scheduler child, its endpoints, and named faults (MOCK).

The key comes from --config, and requests without it get 401 as from SGLang (utils/auth.py: health and metrics are open).

serve | die (error at start) | crash (exits MOCK_CRASH_S after it answered). A file /run/spark/hang makes it accept
requests and never answer.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE = os.environ.get("MOCK", "serve")
HANG = Path("/run/spark/hang")
argv = sys.argv[1:]


def option(name, default=None):
    return argv[argv.index(name) + 1] if name in argv else default


def say(text):
    sys.stdout.write(f"[2026-11-30 12:00:00] {text}\n")
    sys.stdout.flush()


KEY = None
if option("--config"):
    KEY = Path(option("--config")).read_text().split("api-key:")[1].strip().strip("'")

say("server_args=ServerArgs(mock)")
if MODE == "die":
    sys.stdout.write("Traceback (most recent call last):\nValueError: no scale for layers.3.mlp\n")
    sys.stdout.flush()
    sys.exit(1)
scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(86400)", "mock-scheduler"])
say("Load weight begin. avail mem=90.00 GB")
time.sleep(float(os.environ.get("MOCK_BOOT_S", "0")))
busy = threading.Semaphore(64)
stopping = threading.Event()
connections = set()
answered = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        connections.add(self.connection)

    def finish(self):
        connections.discard(self.connection)
        super().finish()

    def log_message(self, *_args):
        pass

    def refused(self):
        if KEY is None or self.path.startswith(("/health", "/metrics")):
            return False
        if self.headers.get("Authorization") == f"Bearer {KEY}":
            return False
        self.reply(json.dumps({"error": "Unauthorized"}), status=401)
        return True

    def reply(self, body, status=200, kind="application/json"):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.refused():
            return
        if self.path == "/metrics":
            self.reply(
                f"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nmock:answered {len(answered)}\n",
                kind="text/plain",
            )
        elif self.path == "/v1/models":
            self.reply(json.dumps({"data": [{"id": "mock"}]}))
        else:
            self.reply("{}")

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refused():
            return
        body = json.loads(raw or b"{}")
        while HANG.exists():
            time.sleep(0.2)
        with busy:
            time.sleep(float(body.get("mock_seconds", 0)))
            self.reply(
                json.dumps({"text": "ok", "choices": [{"text": "ok"}], "usage": {"completion_tokens": 1}})
            )
        answered.append(self.path)
        if MODE == "crash":
            threading.Timer(float(os.environ.get("MOCK_CRASH_S", "2")), lambda: os._exit(3)).start()


class Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True


server = Server((option("--host", "127.0.0.1"), int(option("--port"))), Handler)


def stop(*_):
    if not stopping.is_set():
        stopping.set()
        threading.Thread(target=server.shutdown).start()


signal.signal(signal.SIGTERM, stop)


def watch():
    scheduler.wait()
    if not stopping.is_set():
        say("Scheduler died")
        os._exit(1)


threading.Thread(target=watch, daemon=True).start()
say("max_total_num_tokens=16384")
say("The server is fired up and ready to roll!")
server.serve_forever()
for open_one in list(
    connections
):  # a client that keeps its connection would hold up the end; running replies still go out
    with contextlib.suppress(OSError):
        open_one.shutdown(socket.SHUT_RD)
server.server_close()
scheduler.kill()
