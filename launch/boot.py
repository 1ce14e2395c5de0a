"""Reading an engine's log: which boot phase it is in, and why it died. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# (pattern, what it means); texts of SGLang 0.5.23, first match wins. {1} is the pattern's first group.
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"server_args=", "configuration accepted"),
        (r"Init torch distributed begin", "starting the device"),
        (r"Load weight begin", "loading weights"),
        (r"(?:Loading safetensors|Multi-thread loading).*?(\d+)% Completed", "loading weights, {1} %"),
        (r"Load weight end", "weights loaded"),
        (r"Initialized DFLASH draft runner", "draft loaded"),
        (r"(?:Mamba|KV) Cache is allocated", "allocating caches"),
        (r"Capture (.+?) CUDA graph begin", "capturing CUDA graphs ({1})"),
        (r"Capture (.+?) CUDA graph end", "CUDA graphs captured ({1})"),
        (r"Running FlashInfer autotune", "autotuning kernels"),
        (r"FlashInfer autotune completed", "kernels tuned"),
        (r"max_total_num_tokens=(\d+)", "scheduler up, {1} tokens of KV cache"),
        (r"Uvicorn running on", "HTTP server up, warming up"),
        (r"The server is fired up", "engine says ready; asking it for a token"),
    )
)


def phase(line: str) -> str | None:
    """The boot phase a log line announces, or None."""
    for pattern, text in _PHASES:
        found = pattern.search(line)
        if found:
            return text.replace("{1}", found[1]) if pattern.groups else text
    return None


# An exception's last line (`module.Error: text`), argparse's, and CUDA's. The engine prefixes log lines with [time].
_ERROR = re.compile(
    r"^(?:\[[^\]]*\]\s*)?(?:"
    r"(?:[A-Za-z_][\w.]*\.)?(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))\b(?::.*)?"
    r"|.*?: error: .*"
    r"|.*\bNV_ERR_\w+.*"
    r"|.*\bCUDA error: .*"
    r"|.*: No module named \S+"
    r"|(?:FATAL|CRITICAL)\b.*"
    r")\s*$"
)
# What the parent processes say after a child has died: true, but not the cause.
_ECHO = re.compile(
    r"(sigquit|child failed|child process|scheduler.*(?:died|dead)|is not alive|EOFError|BrokenPipeError"
    r"|DeprecationWarning|FutureWarning|UserWarning|ConnectionRefusedError|KeyboardInterrupt|SystemExit"
    r"|CancelledError|resource_tracker)",
    re.IGNORECASE,
)


# Texts of SGLang 0.5.23 and FlashInfer 0.7.2, the latter with the name that launch/hook adds.
REFUSED = re.compile(
    r"JIT module '(?P<sglang>[^']+)' has no usable cached build"
    r"|JIT compilation is disabled via FLASHINFER_DISABLE_JIT(?:[^\n]*Module: (?P<flashinfer>\S+))?"
)


def cause(lines: list[str]) -> str | None:
    """The engine's own error in a log, or None.

    Where a scheduler reported an exception, the first one counts: the others fell over it. Otherwise the last
    exception that is not a mere echo of another process's death. Chained exceptions are printed innermost first,
    so the last of a chain is taken.
    """
    refused = REFUSED.search("\n".join(lines))
    if refused is not None:
        name = refused["sglang"] or refused["flashinfer"] or "a module"
        return f"{name} is neither prebuilt nor cached, and SPARK_NO_COMPILE forbids to compile it"
    start = next((i for i, line in enumerate(lines) if "hit an exception" in line), None)
    if start is not None:
        return _first_error(lines[start:]) or _last_error(lines[:start])
    return _last_error(lines)


def _first_error(lines: list[str]) -> str | None:
    found: str | None = None
    chained = False
    for line in lines:
        if "During handling of the above exception" in line or "direct cause of the following" in line:
            chained = True
        elif _is_error(line):
            if found is not None and not chained:
                break
            found, chained = _bare(line), False
    return found


def _last_error(lines: list[str]) -> str | None:
    return next((_bare(line) for line in reversed(lines) if _is_error(line)), None)


def _is_error(line: str) -> bool:
    return _ERROR.match(line.rstrip()) is not None and _ECHO.search(line) is None


def _bare(line: str) -> str:
    return re.sub(r"^\[[^\]]*\]\s*", "", line.strip())


@dataclass(frozen=True, slots=True)
class Ending:
    """How the engine ended, in an operator's words."""

    code: int
    text: str


_SIGNALS = {
    4: "illegal instruction: this CPU lacks what a library was built for (AVX?)",
    6: "aborted itself",
    7: "bus error: often a full /dev/shm",
    9: "killed (SIGKILL): the kernel's out-of-memory killer, earlyoom, or a person",
    11: "segmentation fault",
    15: "terminated (SIGTERM) by another program: earlyoom or systemd-oomd do this when memory runs low",
}


def ending(code: int) -> Ending:
    """A return code of Popen (negative: signal) or a shell's 128+n, explained."""
    signal = -code if code < 0 else code - 128 if 128 < code < 160 else None
    if signal is not None:
        return Ending(code, _SIGNALS.get(signal, f"ended by signal {signal}"))
    if code == 0:
        return Ending(code, "ended by itself with exit code 0, which a server never should")
    return Ending(code, f"exit code {code}")


def redact(text: str, secrets: Sequence[str]) -> str:
    """`text` without the secrets: the engine prints its whole configuration, the API key included."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
