"""`sparkserve tune`: measure the engine's choices on this machine, keep the numbers, choose, and let `serve` know."""
