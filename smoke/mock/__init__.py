"""A mock engine: a small ASGI app that behaves like SGLang with a planted or a capable model, and named faults.

It exists so that every check of the suite is tested for both verdicts. `python -m smoke.mock --help` serves it.
"""
