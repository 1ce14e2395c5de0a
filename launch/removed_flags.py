"""The 27 flags that sglang 0.5.19 had and 0.5.23 has not, and what replaces each.

Found by comparing the live argparse of both releases. Where 0.5.19 already carried the flag as a deprecated
alias the replacement is the one it named itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removed:
    """`flag` is the replacement (None: simply drop it). `value` is set where an old switch became one value
    of a valued flag, `values` where old values were renamed. `takes_value`: the old flag had one."""

    flag: str | None
    takes_value: bool
    value: str | None = None
    values: dict[str, str] | None = None
    note: str = ""

    @property
    def advice(self) -> str:
        if self.flag is None:
            return f"drop it: {self.note}" if self.note else "drop it"
        target = self.flag if self.value is None else f"{self.flag} {self.value}"
        return f"use {target}" + (f" ({self.note})" if self.note else "")


_CP = {"in-seq-split": "zigzag", "round-robin-split": "interleave"}
_TC = "the tc_piecewise backend is gone; the prefill graph of 0.5.23 is full, breakable or disabled"

REMOVED: dict[str, Removed] = {
    "--collect-tokens-histogram": Removed(None, False, note="collected whenever --enable-metrics is set"),
    "--cuda-graph-bs": Removed("--cuda-graph-bs-decode", True),
    "--cuda-graph-max-bs": Removed("--cuda-graph-max-bs-decode", True),
    "--cuda-graph-tc-compiler": Removed(None, True, note=_TC),
    "--disable-piecewise-cuda-graph": Removed("--disable-prefill-cuda-graph", False),
    "--dsa-prefill-cp-mode": Removed("--cp-strategy", True, values=_CP),
    "--elastic-ep-rejoin": Removed("--elastic-ep-join-mode", False, value="recover"),
    "--enable-breakable-cuda-graph": Removed("--cuda-graph-backend-prefill", False, value="breakable"),
    "--enable-dsa-prefill-context-parallel": Removed("--enable-prefill-cp", False),
    "--enable-expert-distribution-metrics": Removed(
        "--expert-balancedness-report-mode", False, value="prometheus", note="or server_log, both"
    ),
    "--enable-gdn-replayssm-spec": Removed("--enable-linear-replayssm-spec", False),
    "--enable-nsa-prefill-context-parallel": Removed("--enable-prefill-cp", False),
    "--enable-prefill-context-parallel": Removed("--enable-prefill-cp", False),
    "--enforce-piecewise-cuda-graph": Removed(None, False, note=_TC),
    "--keep-mm-feature-on-device": Removed("--mm-feature-transport", False, value="cuda_ipc"),
    "--mamba-scheduler-strategy": Removed("--mamba-radix-cache-strategy", True),
    "--nsa-decode-backend": Removed("--dsa-decode-backend", True),
    "--nsa-prefill-backend": Removed("--dsa-prefill-backend", True),
    "--nsa-prefill-cp-mode": Removed("--cp-strategy", True, values=_CP),
    "--piecewise-cuda-graph-compiler": Removed(None, True, note=_TC),
    "--piecewise-cuda-graph-max-tokens": Removed("--cuda-graph-max-bs-prefill", True),
    "--piecewise-cuda-graph-tokens": Removed("--cuda-graph-bs-prefill", True),
    "--prefill-cp-mode": Removed("--cp-strategy", True, values=_CP),
    "--prefill-round-robin-balance": Removed(None, False, note="it had no effect any more"),
    "--speculative-dflash-draft-window-size": Removed("--speculative-draft-window-size", True),
    "--speculative-skip-dp-mlp-sync": Removed(None, False, note="0.5.23 has no such switch"),
    "--stream-output": Removed("--incremental-streaming-output", False),
}
