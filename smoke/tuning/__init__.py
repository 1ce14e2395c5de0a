"""The measuring half of `sparkserve tune`: runs in the engine's Python, one process per candidate."""
