"""Cleaning rules, one module each: pure functions over a batch of texts. `reference.py` defines them in plain Python."""
