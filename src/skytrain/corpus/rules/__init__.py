"""Cleaning rules, one module each: pure functions over a batch of texts.

`tests/corpus/reference.py` defines them in plain Python, and the tests compare the two.
"""
