"""The patched engine on a GPU: planted text, planted acceptance, planted log-probabilities, and the fast path.

Each case boots `sparkserve serve` on a fixture pair. On SM90 the NVFP4 modules run through Marlin (weights only), so heads,
drafts, CUDA graphs, scheduler and API are real there and the native FP4 GEMM is not; tolerances of log-probabilities are those
of the fixture's oracle. Set SPARKSERVE_EVIDENCE to a folder to keep what was seen: one JSON and one log per case.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from launch import paths
from smoke.demo import free_port, stop
from smoke.fixtures import oracle

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.environ.get("SPARKSERVE_GPU_MACHINE", "h200")
BOOT_S = int(os.environ.get("SPARKSERVE_GPU_BOOT_S", "540"))
KEEP = os.environ.get("SPARKSERVE_EVIDENCE")
WORTH_KEEPING = re.compile(
    r"CUDA graph (?:begin|end)|DFLASH|modelopt|quantiz|kv cache dtype|KV Cache is allocated|Memory pool|accept|"
    r"attention[_ ]backend|max_total_num_tokens|fp4|Marlin|ompil",
    re.I,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(BOOT_S + 240)]


@dataclass(frozen=True)
class Case:
    """One pair: fixture names, how the draft is declared, what must come out."""

    target: str
    draft: str | None
    quantization: str = "unquant"
    tp: int = 1
    accept: float = 8.0
    tokens: int = 8
    folded: str | None = "DFLASH selector decode folded into the draft cuda graph"
    engine: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.target}--{self.draft or 'nodraft'}" + (f"-tp{self.tp}" if self.tp > 1 else "")


GREEDY = "DFLASH draft greedy head folded into the draft cuda graph"
CASES = [
    Case("qwen38-w4a4", "dflash2"),
    Case("qwen38-w4a4", "dflash", accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen38-w4a4", None, accept=1.0, folded=None),
    Case("qwen36-w4a16", "dflash2"),
    Case("qwen36-w4a16", "dflash", accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen36-w4a16", None, accept=1.0, folded=None),
    Case("qwen38-w4a4-fp8-head", "dflash2"),
    Case("qwen38-w4a4-fp8-head", "dflash", accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen38-w4a4-bf16-head", "dflash2"),
    Case("qwen36-w4a16-vocab2000", "dflash2-vocab2000"),
    Case("qwen38-w4a4", "dflash2-nvfp4", quantization="modelopt_fp4"),
    Case("qwen36-w4a16", "dflash2-nvfp4", quantization="modelopt_fp4"),
    Case("qwen38-w4a4-fp8-head", "dflash2-nvfp4", quantization="modelopt_fp4"),
    Case("qwen38-w4a4", "dflash2-nvfp4-all", quantization="modelopt_fp4"),
    Case("qwen38-w4a4", "dflash-nvfp4", quantization="modelopt_fp4", accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen38-w4a4", "dflash2-mixed", quantization="modelopt_mixed"),
    Case("qwen38-w4a4", "dflash2-fp8", quantization="modelopt_fp8"),
    Case("qwen38-w4a4", "dflash2-w4a16", quantization="compressed-tensors"),
]
TP_CASES = [
    Case("qwen38-w4a4", "dflash2", tp=2),
    Case("qwen38-w4a4", "dflash", tp=2, accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen38-w4a4-fp8-head", "dflash", tp=2, accept=2.0, tokens=16, folded=GREEDY),
    Case("qwen36-w4a16", "dflash2", tp=2),
]


def gpus() -> int:
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0
    return said.count("GPU ")


def preset(case: Case, folder: Path) -> str:
    """Write the case as a preset beside the shipped ones; its name."""
    shutil.copytree(paths.presets_dir(), folder)
    lines = [
        "schema = 1",
        'name = "gpu-case"',
        'extends = "_fixture"',
        'title = "GPU test"',
        'status = "fixture"',
        f'default_machine = "{MACHINE}"',
        "[target]",
        f'fixture = "{case.target}"',
    ]
    if case.draft:
        lines += ["[draft]", f'fixture = "{case.draft}"', 'algorithm = "DFLASH"', f"tokens = {case.tokens}"]
        lines += [f'quantization = "{case.quantization}"']
    lines += [
        f"[machine.{MACHINE}]",
        "mem_fraction_static = 0.3",
        "max_total_tokens = 100000",
        "max_mamba_cache_size = 48",
    ]
    if case.tp > 1:
        lines.append(f"tp_size = {case.tp}")
    lines += [f"{k} = {json.dumps(v)}" for k, v in case.engine.items()]
    (folder / "gpu-case.toml").write_text("\n".join(lines) + "\n")
    return "gpu-case"


@dataclass
class Running:
    case: Case
    url: str
    log: Path
    seen: dict[str, object]

    def lines(self) -> list[str]:
        return [s for s in self.log.read_text(errors="replace").splitlines() if WORTH_KEEPING.search(s)]


@pytest.fixture(scope="module", params=[*CASES, *TP_CASES], ids=str)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    case: Case = request.param
    if gpus() < case.tp:
        pytest.skip(f"{case.tp} GPUs needed, {gpus()} here")
    folder = tmp_path_factory.mktemp("gpu")
    name = preset(case, folder / "presets")
    log, port = folder / "engine.log", free_port()
    argv = [sys.executable, "-m", "launch", "serve", name, "--machine", MACHINE, "--port", str(port)]
    argv += ["--log-file", str(log), "--boot-timeout", str(BOOT_S)]
    env = {
        **os.environ,
        "SPARKSERVE_PRESETS": str(folder / "presets"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(case.tp))),
    }
    server = subprocess.Popen(
        argv,
        cwd=ROOT,
        env=env,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: dict[str, object] = {"case": str(case), "quantization": case.quantization, "tp": case.tp}
    run = Running(case, f"http://127.0.0.1:{port}", log, seen)
    try:
        assert server.stdout
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("ready after"):
                seen["ready"] = line.split(":")[0]
                break
        else:
            seen["died"] = said[-40:]
            pytest.fail(f"{case}: the server did not get up:\n{''.join(said[-40:])}")
        yield run
    finally:
        stop(server)
        seen["log"] = run.lines() if log.exists() else []
        if KEEP:
            stem = Path(KEEP) / str(case)
            stem.with_suffix(".json").write_text(json.dumps(seen, indent=1) + "\n")


def generate(url: str, **body: object) -> dict[str, object]:
    reply = httpx.post(url + "/generate", json=body, timeout=180)
    assert reply.status_code == 200, reply.text
    return reply.json()


def reference(case: Case) -> dict[str, object]:
    return oracle.read(paths.fixtures_dir() / case.target)


def test_text_is_the_planted_one(running):
    for prompt in reference(running.case)["prompts"]:
        n = len(prompt["output_ids"])
        params = {"temperature": 0, "max_new_tokens": n, "ignore_eos": True}
        got = generate(running.url, input_ids=prompt["input_ids"], sampling_params=params)
        assert got["output_ids"][:n] == prompt["output_ids"], prompt["name"]


def test_acceptance_is_the_planted_one(running):
    params = {"temperature": 0, "max_new_tokens": 128, "ignore_eos": True}
    meta = generate(running.url, text=" Paris", sampling_params=params)["meta_info"]
    length = meta.get("spec_accept_length", 1.0)
    running.seen["accept_length"] = length
    assert length == running.case.accept


def test_log_probabilities_are_within_the_oracle_s_tolerance(running):
    ref = reference(running.case)
    measured, expected = [], []
    for prompt in ref["prompts"]:
        n = len(prompt["output_ids"])
        params = {"temperature": 0, "max_new_tokens": n, "ignore_eos": True}
        got = generate(
            running.url, input_ids=prompt["input_ids"], sampling_params=params, return_logprob=True
        )
        measured += [row[0] for row in got["meta_info"]["output_token_logprobs"][:n]]
        expected += prompt["logprobs"]
    gap = oracle.difference(measured, expected)
    running.seen["logprob_mean_abs"], running.seen["logprob_max_abs"] = gap.mean_abs, gap.max_abs
    assert gap.within(ref["tolerance"]), gap


def test_batch_of_eight_says_the_same(running):
    prompts = reference(running.case)["prompts"]
    batch = [prompts[i % len(prompts)] for i in range(8)]
    params = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    got = generate(running.url, input_ids=[p["input_ids"] for p in batch], sampling_params=params)
    for reply, prompt in zip(got, batch, strict=True):
        assert reply["output_ids"][:16] == prompt["output_ids"][:16], prompt["name"]


def test_the_fast_path_is_in_the_graphs(running):
    log = "\n".join(running.lines())
    assert re.search(r"CUDA graph end", log), "no CUDA graph was captured"
    if running.case.folded:
        assert running.case.folded in log, [s for s in running.lines() if "DFLASH" in s]
        assert "kept eager" not in log
