"""Downstream tasks as evaluators: multiple choice, cloze, and language modelling."""
