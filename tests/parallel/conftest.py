"""Fixtures of the parallel tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def compiled_operations(own_cache: None) -> None:
    """DeepSpeed's operations, which take minutes to compile, once per machine: their folder is named by all that decides them."""
    kept = Path.home() / ".cache/skytrain/deepspeed"
    kept.mkdir(parents=True, exist_ok=True)
    here = Path(os.environ["XDG_CACHE_HOME"]) / "skytrain"
    here.mkdir(exist_ok=True)
    (here / "deepspeed").symlink_to(kept)
