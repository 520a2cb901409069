"""Skytrain: pretrain language models on AWS inside a budget of dollars."""

__version__ = "0.1.0"
