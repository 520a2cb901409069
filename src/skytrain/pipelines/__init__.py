"""Pipelines: one module for each command, which joins the packages and reads from top to bottom."""
