"""Stands in for launch.tune._worker: argv[1] names what it does, argv[2] a file that counts its starts."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

how, starts = sys.argv[1], Path(sys.argv[2])
with starts.open("a") as f:
    f.write("x")
job = json.load(sys.stdin)
if how == "no-gpu":
    print(json.dumps({"error": "PyTorch finds no GPU"}), flush=True)
    sys.exit(1)
print(json.dumps({"ready": {"device": "pretended"}}), flush=True)
print("a library that prints", flush=True)
for n, item in enumerate(job["items"]):
    bad = job["option"] == "flashinfer_b12x"
    if bad and how == "segfault" and n == 1:
        os.kill(os.getpid(), 11)
    if bad and how == "hang" and n == 1:
        time.sleep(600)
    if bad and how == "raises":
        print(json.dumps({"id": item["id"], "error": "ValueError: K must be a multiple of 32"}), flush=True)
        continue
    print(json.dumps({"id": item["id"], "us": [10.0, 10.1, 9.9, 10.0]}), flush=True)
