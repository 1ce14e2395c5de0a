"""One contract file per patch; `support.py` and `tiny_models.py` are shared by them."""
