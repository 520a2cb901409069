"""How torch is asked to take memory from a GPU."""

from __future__ import annotations

import os

import pytest

from skytrain.training.memory import ALLOCATOR_VARIABLES, grow_segments


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_segments_grow_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    grow_segments()
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    grow_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
