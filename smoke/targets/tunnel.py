"""A loopback port whose connections go into a container through `docker exec`, for one that has no network at all.

A container with network `none` cannot publish a port. So every connection starts a small relay inside, which talks to the
engine on the container's own loopback; its standard streams are the connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

RELAY = """
import os, socket, sys, threading
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
# What has a network besides lo, by the kernel's own list; a connection outwards must fail at once, not time out.
PROBE = """
import os, socket
links = sorted(n for n in os.listdir("/sys/class/net") if n != "lo")
try:
    socket.create_connection(("192.0.2.1", 443), 3).close()
    way = "a connection outwards came about"
except OSError as e:
    way = e.strerror or str(e)
print(",".join(links) or "lo only", way, sep="; ")
"""
STDOUT = 1


class Tunnel:
    """Listens on 127.0.0.1:`port` until closed. `container` is the SDK's; `inside` the engine's port in it."""

    def __init__(self, container: Any, port: int, inside: int) -> None:
        self.container, self.inside = container, inside
        self.listener = socket.create_server(("127.0.0.1", port), backlog=64)
        threading.Thread(target=self._accept, daemon=True, name="tunnel").start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True, name="tunnel").start()

    def _serve(self, peer: socket.socket) -> None:
        """One connection, to its end. Whatever fails closes it, as a dead server would."""
        with peer, contextlib.suppress(Exception):
            api = self.container.client.api
            command = ["python", "-c", RELAY, str(self.inside)]
            made = api.exec_create(self.container.id, command, stdin=True, stderr=False)
            stream = api.exec_start(made["Id"], socket=True)
            # A file object over the socket reads ahead and cannot shut down one side: take the socket itself.
            raw = getattr(stream, "_sock", stream)
            threading.Thread(target=_up, args=(peer, raw), daemon=True, name="tunnel-up").start()
            try:
                while data := _frame(raw):
                    peer.sendall(data)
            finally:
                raw.close()


def _up(peer: socket.socket, raw: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := peer.recv(65536):
            raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)


def _frame(raw: socket.socket) -> bytes:
    """The next piece of standard output (docker's stream: 8 bytes of kind and length, then the piece); b"" at the end."""
    while head := _exactly(raw, 8):
        kind, length = struct.unpack(">BxxxL", head)
        data = _exactly(raw, length)
        if kind == STDOUT:
            return data
    return b""


def _exactly(raw: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = raw.recv(n - len(data))
        if not more:
            return b""
        data += more
    return data
