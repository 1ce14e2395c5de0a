"""bench/cold_boot.py: which processes are compilers and whose, and the ratios of its table."""

from __future__ import annotations

from bench import cold_boot


def test_compilers_below_the_server_are_told_apart():
    tree = {
        10: (1, "python3"), 11: (10, "sglang::sched"), 12: (11, "ninja"), 13: (12, "nvcc"), 14: (13, "cicc"),
        15: (11, "ptxas"), 16: (11, "cc1plus"), 17: (13, "ptxas"), 20: (1, "nvcc"), 21: (11, "bash"),
    }  # fmt: skip
    found = cold_boot.compilers(tree, 10)
    assert {pid: family for pid, (_, family) in found.items()} == {
        12: "nvcc", 13: "nvcc", 14: "nvcc", 15: "triton", 16: "other", 17: "nvcc",
    }  # fmt: skip


def test_ratio_past_the_deadline_is_a_lower_bound():
    def row(case, seconds, shown):
        return {"preset": "p", "case": case, "seconds": seconds, "shown": shown}

    rows = [row("prebuilt", 50.0, "50.0 s"), row("cold", None, "> 400 s")]
    assert cold_boot.ratios(rows) == {"p cold:prebuilt": "> 8.00"}
    assert cold_boot.ratios([rows[0], row("cold", 300.0, "300.0 s")]) == {"p cold:prebuilt": "6.00"}
    assert cold_boot.ratios([rows[0], row("cold", None, "did not start")]) == {}
