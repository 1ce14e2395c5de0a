"""The CPU engine: reference numerics that let the real SGLang server run without a GPU (see README.md)."""
