"""20 MB of mixed text, special tokens included: every id is AutoTokenizer's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skytrain.tokens import load_tokenizer_folder
from tests.support.hf_tokenizers import make_tokenizer_folder
from tests.support.mixed_text import mixed_text

SIZE = 20_000_000
BATCH = 200


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return mixed_text(SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "gemma"])
def test_every_id_of_20_mb_is_auto_tokenizers(kind: str, texts: list[str], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = make_tokenizer_folder(kind, tmp_path / kind, mixed_text(1_000_000, spell_special=False), 8000)
    ours, theirs = load_tokenizer_folder(folder), AutoTokenizer.from_pretrained(folder)
    plain = {"add_special_tokens": False, "split_special_tokens": True}
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        for text, found, expected in zip(
            batch, ours.encode_batch(batch), theirs(batch, **plain).input_ids, strict=True
        ):
            assert np.array_equal(found, expected), text
    rendered = [text for text in texts if "<" in text][:2000]
    for start in range(0, len(rendered), BATCH):
        batch = rendered[start : start + BATCH]
        expected = theirs(batch, add_special_tokens=False).input_ids
        assert all(map(np.array_equal, ours.encode_rendered(batch), expected))  # type: ignore[attr-defined]
