"""A server that takes memory in a pattern drawn from a seed, at a bounded rate, until it is stopped. Runs in the container.

argv: seed, pattern, bytes to take at once at the start, bytes a second at most.
"""

import os
import random
import signal
import sys
import time

MIB = 1 << 20
seed, pattern, base, rate = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
held = []


def take(size, bytes_a_second):
    """Touch every page, then wait as long as the rate asks for: no catching up after a pause."""
    block = bytearray(size)
    block[::4096] = b"\1" * len(block[::4096])
    held.append(block)
    time.sleep(size / bytes_a_second)


def rise(bytes_a_second):
    while True:
        take(rng.randint(1, 4) * MIB // 2, bytes_a_second)


for _ in range(base // MIB):
    take(MIB, 1 << 33)

if pattern == "steady":
    rise(rate)
elif pattern == "bursts":
    while True:
        for _ in range(rng.randint(2, 12)):
            take(MIB, rate)
        time.sleep(rng.random() * 0.2)
elif pattern == "sawtooth":
    while True:
        n = rng.randint(4, 16)
        for _ in range(n):
            take(MIB, rate)
        del held[-rng.randint(1, n // 2) :]
        time.sleep(rng.random() * 0.05)
elif pattern == "creep":
    rise(rate / 3)
elif pattern == "children":
    for _ in range(3):
        if os.fork() == 0:
            break
    rise(rate / 4)
elif pattern == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rise(rate)
elif pattern == "runaway":  # a child in a session of its own, its parent gone, deaf to TERM
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        rise(rate)
    time.sleep(600)
elif pattern == "well-behaved":  # stays above the floor and ends by itself: must not be touched
    for _ in range(10):
        take(rng.randint(1, 2) * MIB, rate)
    sys.exit(0)
