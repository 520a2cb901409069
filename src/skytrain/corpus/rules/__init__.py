"""Cleaning: each stage a pure function over a batch of texts, fast, with a plain reference that says the same."""
