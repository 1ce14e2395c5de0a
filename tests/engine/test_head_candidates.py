"""The candidate kernel (P28) in Triton's interpreter against float64: every head, odd shapes, shards, ties."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
KINDS = ("nvfp4", "nvfp4_swizzled", "dense", "fp8", "fp8_row")
PROGRAM = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, "bench")
import torch, selector, selector_heads as made
with tempfile.TemporaryDirectory() as folder:
    hc = selector.load_kernel(Path(folder))
    out = {}
    for kind in sys.argv[1].split(","):
        # n, K, rows that count, hidden states, k, programs: padded tails, an odd shard, more programs than tiles
        for n, width, rows, states, k, programs in ((330, 128, 301, 19, 16, 3), (65, 64, 65, 1, 4, 9)):
            head, exact = made.make_head(hc, kind, (n, width), rows=rows, device="cpu", seed=n)
            x = torch.randn((states, width), generator=torch.Generator().manual_seed(n)).bfloat16()
            x[0] *= 1000.0
            config = hc.Config(block_n=64, block_r=16, block_k=64, programs=programs, native=False)
            ids, values = hc.head_candidates(x, head, k, config)
            found = made.check(ids, values, made.logits64(x, exact, rows))
            out[f"{kind} {n}"] = {**found, "good": made.good(found), "highest": int(ids.max()), "rows": rows}
    head, _ = made.make_head(hc, "dense", (200, 64), rows=200, device="cpu", seed=0)
    head.weight[:] = head.weight[0]
    ids, _ = hc.head_candidates(torch.ones((2, 64)).bfloat16(), head, 8, hc.Config(
        block_n=64, block_r=16, block_k=64, programs=2, native=False))
    out["all equal"] = ids.tolist()
    zero, _ = hc.head_candidates(torch.zeros((1, 64)).bfloat16(), head, 8, hc.Config(
        block_n=64, block_r=16, block_k=64, programs=3, native=False))
    out["all zero"] = zero.tolist()
    config = hc.Config(block_k=64)
    x = torch.zeros((1, 64)).bfloat16()
    out["refused"] = [hc.unsupported(head, *a) for a in (
        (x.float(), 8, config), (x.half(), 8, config), (x, 12, config), (x, 256, config), (x[:, :32], 8, config),
        (x, 8, hc.Config(block_k=128)))]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def answers() -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(KINDS)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [330, 65])
def test_candidates_are_those_of_float64(kind, n, answers):
    found = answers[f"{kind} {n}"]
    assert found["good"], found
    assert found["highest"] < found["rows"], "a row of the padded tail was proposed"


def test_ties_go_to_the_lower_id(answers):
    assert answers["all equal"] == [list(range(8))] * 2
    assert answers["all zero"] == [list(range(8))]


def test_what_it_cannot_take_is_named(answers):
    assert all(answers["refused"]), answers["refused"]
