"""A machine's memory bandwidth: given, measured here by `sparkserve tune`, or from a source. I/O edge."""

from __future__ import annotations

from launch.commandline import places
from launch.errors import ConfigError
from launch.planfacts import table
from launch.resolve import Resolved
from launch.tune import profile


def bandwidth(r: Resolved, asked: float | None = None) -> tuple[float, str]:
    """(bytes/s, where it comes from); `asked` in GB/s. ConfigError when nobody knows."""
    if asked is not None:
        return asked * 1e9, "--bandwidth"
    key = profile.current_key(places().python) if profile.folder().is_dir() else None
    if key is not None and key.capability == r.machine.compute_capability:
        found = profile.load(profile.path_of(key))
        if found is not None and found.bandwidth:
            return found.bandwidth, f"measured here by sparkserve tune ({key.gpu})"
    machine = table("machines")[r.machine.name]
    if "bandwidth_gbs" not in machine:
        raise ConfigError(
            f"{r.machine.name}: no source states its memory bandwidth; "
            "give --bandwidth GB/S or run `sparkserve tune` there"
        )
    return machine["bandwidth_gbs"] * 1e9, machine["bandwidth_source"]
