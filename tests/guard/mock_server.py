"""An HTTP server with the engine's endpoints, in threads: one scheduler that prefills in order, counters, and faults."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MockServer:
    """`release` ends the prefill in progress; `hang` makes every later request wait for ever."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.prefill_done = threading.Event()
        self.prefill_done.set()
        self.closing = threading.Event()
        self.hang = False
        self.refuse = False
        self.running = 0
        self.tokens = 0
        self.answers = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def reply(self, text: str, status: int = 200) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.reply(outer.metrics())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.generate(body)
                if outer.closing.is_set():
                    return
                if outer.refuse:
                    self.reply("{}", 500)
                    return
                outer.answers += 1
                self.reply("{}")

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def metrics(self) -> str:
        return (
            f'# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{{model_name="m"}} {self.running}\n'
            f"sglang:num_queue_reqs 0\nsglang:prompt_tokens_total {self.tokens}\n"
        )

    def generate(self, _body: dict[str, object]) -> None:
        while self.hang and not self.closing.wait(0.02):
            pass
        while not self.prefill_done.wait(0.02) and not self.closing.is_set():
            pass

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
