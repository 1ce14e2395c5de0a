"""What a machine has to give: memory, swap, pressure, cgroup limits, GPU, killers. Parsers are pure; `measure` reads."""
