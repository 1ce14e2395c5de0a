"""Translate an exit code and the end of a log into a cause and its mend.

Each rule is a symptom people met (see docs/smoke.md). The order matters: the first match wins, so the
specific symptoms stand before the general ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smoke.errors import CONFIG, ENGINE, NOT_ADMITTED


@dataclass(frozen=True)
class Cause:
    """Why the engine is not there. `code` is the exit code the smoke command ends with."""

    title: str
    todo: str
    code: int = ENGINE


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    title: str
    todo: str
    code: int = ENGINE


def _r(pattern: str, title: str, todo: str, code: int = ENGINE) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), title, todo, code)


_LOG: tuple[_Rule, ...] = (
    _r(
        r"NVRM:.*(?:NV_ERR_NO_MEMORY|out of memory)",
        "the NVIDIA driver ran out of memory (NVRM), which freezes a unified-memory machine",
        "lower mem_fraction_static in the preset's machine section and free other GPU users first",
        NOT_ADMITTED,
    ),
    _r(r"NVRM: Xid", "the NVIDIA driver reported an Xid error", "see dmesg; a power cycle may be needed"),
    _r(
        r"earlyoom.*(?:sending|SIGTERM|SIGKILL)",
        "earlyoom killed the engine",
        "stop earlyoom or lower its threshold below the preset's reserve, then lower mem_fraction_static",
        NOT_ADMITTED,
    ),
    _r(
        r"address already in use|\[Errno 98\]|port \d+ is (?:already )?(?:in use|taken|occupied)",
        "the port is taken",
        "end the process that listens there, or start with another port",
    ),
    _r(
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory",
        "CUDA out of memory",
        "lower mem_fraction_static, max_running_requests or chunked_prefill_size in the preset",
    ),
    _r(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights leave no room for a KV pool",
        "raise mem_fraction_static, or choose a preset for this machine class (sparkserve plan shows the sum)",
    ),
    _r(
        r"Model architectures? .{0,200}?(?:are|is) not supported",
        "this engine does not know the checkpoint's architecture",
        "use the preset's engine version (a draft needs DFlash2DraftModel, in SGLang from 0.5.19)",
        CONFIG,
    ),
    _r(
        r"JIT module '[^']+' has no usable cached build|build configuration\. Module: \S+|"
        r"JIT compilation is disabled via FLASHINFER_DISABLE_JIT(?![^\n]*Module: )|"
        r"\S+ is neither prebuilt nor cached, and SPARK_NO_COMPILE|SGLANG_CRASH_ON_JIT_COMPILE forbids",
        "a kernel is missing from the prebuilt caches and compiling is forbidden",
        "rebuild the kernel cache for this GPU architecture, or allow one compiling boot",
    ),
    _r(
        r"cannot find -lcudart|CUDA compiler and CUDA toolkit headers are incompatible|"
        r"Value 'sm_1\d\da?' is not defined|ninja: build stopped|RuntimeError: Ninja build failed",
        "a kernel failed to compile",
        "use one coherent CUDA 13.0 toolkit and set CUDA_HOME to it; the image ships one",
    ),
    _r(
        r"Cannot find the config file for modelopt|quantization.{0,60}(?:mismatch|does not match)|"
        r"fc\.weight shape mismatch",
        "the draft is loaded with the wrong quantization",
        "state draft.quantization in the preset (unquant or modelopt_fp4), never inherit it",
        CONFIG,
    ),
    _r(
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|Cannot find the requested files in the local cache",
        "a file of the checkpoint is not in the local cache and the start is offline",
        "run `sparkserve pull PRESET` once with network; both revisions must be pinned",
        CONFIG,
    ),
    _r(
        r"Repository Not Found|RepositoryNotFoundError|GatedRepoError",
        "the checkpoint's repository cannot be read",
        "check the repository name and the token's access",
        CONFIG,
    ),
    _r(
        r"error: (?:unrecognized arguments|ambiguous option|argument )[^\n]*",
        "the engine refused a flag",
        "check the preset's engine keys (sparkserve check PRESET)",
        CONFIG,
    ),
    _r(r"No space left on device", "the disk is full", "free space in the cache volume, then start again"),
    _r(
        r"watchdog timeout",
        "the engine's watchdog saw no forward pass finish",
        "a cold kernel compile counts as one: prebuild, or raise watchdog_timeout",
    ),
    _r(
        r"guard: (?:trip|tripped)[^\n]*|guard tripped[^\n]*",
        "the memory guard stopped the engine",
        "read the guard's low-water mark; lower mem_fraction_static or free memory",
        NOT_ADMITTED,
    ),
    _r(
        r"(?:AssertionError|ValueError|RuntimeError|KeyError|AttributeError|ModuleNotFoundError|ImportError): "
        r"[^\n]+",
        "the engine raised an error",
        "read the log's tail below; report it with the report.json if the preset is validated",
    ),
)

_WAITING: tuple[_Rule, ...] = (
    _r(
        r"Building JIT module (\S+)|Try DeepGEMM JIT Compiling",
        "it was compiling kernels",
        "prebuild the kernels for this GPU, or raise --deadline ready=SECONDS for this one boot",
    ),
    _r(
        r"Running FlashInfer autotune(?!.*autotune completed)",
        "it was autotuning FlashInfer",
        "mount the tactic cache so that the next boot reuses it, or raise --deadline ready=SECONDS",
    ),
    _r(
        r"Capture [^\n]* graph begin",
        "it was capturing CUDA graphs",
        "lower cuda_graph_max_bs_decode, or raise --deadline ready=SECONDS",
    ),
    _r(
        r"Load weight begin",
        "it was loading weights",
        "check the disk's read rate, or raise --deadline ready=SECONDS",
    ),
)

_EXITS: dict[int, Cause] = {
    -15: Cause(
        "killed by SIGTERM without a word, which is how earlyoom ends a process (exit -15/143)",
        "look for earlyoom or systemd-oomd in the journal; lower mem_fraction_static",
        NOT_ADMITTED,
    ),
    -9: Cause(
        "killed by SIGKILL, which is how the kernel's OOM killer ends a process (exit -9/137)",
        "dmesg -T | grep -i oom; lower mem_fraction_static; on unified memory --memory does not protect",
        NOT_ADMITTED,
    ),
    -3: Cause(
        "ended by SIGQUIT: one of the engine's child processes failed first (exit -3/131)",
        "the child's traceback is above in the log",
    ),
    -11: Cause(
        "crashed with a segmentation fault (exit -11/139)", "report it with the log and driver version"
    ),
    -6: Cause("aborted (exit -6/134)", "a CPU without AVX aborts at import; else report it with the log"),
    -4: Cause("hit an illegal instruction (exit -4/132)", "this CPU lacks AVX; use another machine"),
    2: Cause("refused its command line (exit 2)", "check the preset's engine keys", CONFIG),
    70: Cause("the supervisor gave up on the engine (exit 70)", "the log's last start says why"),
    75: Cause(
        "not admitted, or stopped by the memory guard (exit 75)",
        "the log names the figures; sparkserve plan PRESET shows what would fit",
        NOT_ADMITTED,
    ),
    78: Cause("bad configuration (exit 78)", "sparkserve check PRESET names the key", CONFIG),
}


def signal_form(code: int) -> int:
    """128+N, as shells and Docker report a signal, becomes -N, as subprocess does."""
    return 128 - code if 128 < code < 160 else code


def explain(exit_code: int | None, log_tail: str) -> Cause:
    """The most telling cause. `exit_code` is None while the process lives."""
    code = None if exit_code is None else signal_form(exit_code)
    # A bare kill leaves no traceback; a traceback says more than the code it led to.
    for rule in _LOG:
        if m := rule.pattern.search(log_tail):
            detail = " ".join(m.group(0).split())[:200]
            return Cause(f"{rule.title} ({detail})", rule.todo, rule.code)
    if code is not None:
        if code in _EXITS:
            return _EXITS[code]
        if code == 0:
            return Cause(
                "the engine ended by itself with exit 0", "a start that ends is a failed start: see the log"
            )
        return Cause(f"the engine ended with exit {code}", "see the log's tail")
    for rule in _WAITING:
        if _last_open(rule, log_tail):
            return Cause(rule.title, rule.todo)
    return Cause("it was still starting", "see the log's tail, or raise --deadline ready=SECONDS")


def _last_open(rule: _Rule, log: str) -> bool:
    """True if the rule's line is the last phase that began."""
    at = [m.start() for m in rule.pattern.finditer(log)]
    if not at:
        return False
    return not any(m.start() > at[-1] for r in _WAITING if r is not rule for m in r.pattern.finditer(log))
