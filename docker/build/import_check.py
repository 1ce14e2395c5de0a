"""Import what a server on SM121 imports, with torch told that such a device is present.

No GPU is needed: the modules decide by capability, so this notices a package pruned too many. Its side effect is wanted too: the
byte-code of everything imported. Exit 1 and one line per module that does not import.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings

warnings.filterwarnings("ignore")

MODULES = """
sglang.srt.entrypoints.http_server sglang.srt.managers.scheduler sglang.srt.managers.detokenizer_manager
sglang.srt.model_executor.model_runner sglang.srt.models.qwen3 sglang.srt.models.qwen3_next sglang.srt.models.qwen3_5
sglang.srt.models.qwen3_5_mtp sglang.srt.models.qwen3_vl sglang.srt.models.dflash sglang.srt.models.dspark
sglang.srt.models.gpt_oss sglang.srt.models.glm4_moe sglang.srt.layers.attention.flashinfer_backend
sglang.srt.layers.attention.triton_backend sglang.srt.layers.attention.trtllm_mha_backend
sglang.srt.layers.attention.linear.gdn_backend sglang.srt.layers.quantization.modelopt_quant
sglang.srt.speculative.eagle_worker_v2 sglang.srt.speculative.dflash_worker_v2 sglang.srt.constrained.xgrammar_backend
sgl_kernel flashinfer flashinfer.gdn_decode flashinfer.gdn_prefill flashinfer.fused_moe
supervisor.supervisord supervisor.rpcinterface supervisor.xmlrpc supervisor.childutils supervisor.supervisorctl
typer typer.rich_utils rich.console rich.table rich.progress rich.live httpx huggingface_hub prometheus_client.parser
""".split()

DEVICE = types.SimpleNamespace(
    name="NVIDIA GB10",
    major=12,
    minor=1,
    multi_processor_count=48,
    total_memory=128 << 30,
    warp_size=32,
    max_threads_per_multi_processor=1536,
    shared_memory_per_block_optin=101376,
    regs_per_multiprocessor=65536,
    L2_cache_size=24 << 20,
    is_integrated=1,
    gcnArchName="",
    uuid="x",
)


def pretend() -> None:
    import torch

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_a, **_k: (12, 1)
    cuda.get_device_properties = lambda *_a, **_k: DEVICE
    cuda.get_device_name = lambda *_a, **_k: DEVICE.name


def main() -> int:
    pretend()
    failed = 0
    for name in MODULES:
        try:
            importlib.import_module(name)
        except BaseException as e:
            failed += 1
            print(f"import_check: {name}: {type(e).__name__}: {' '.join(str(e).split())[:300]}", file=sys.stderr)
    print(f"import_check: {len(MODULES) - failed} of {len(MODULES)} modules imported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
