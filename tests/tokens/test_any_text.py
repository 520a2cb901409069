"""Any Unicode that goes through the tokenizer and the writer comes back from the shards."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given, settings, strategies as st

from skytrain.storage import open_store
from skytrain.tokens import ShardWriter
from skytrain.tokens.byte_level import gpt2

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=200) | st.just("<|endoftext|>"), min_size=1, max_size=8)


@settings(max_examples=15)
@given(TEXTS, st.integers(1, 300))
def test_documents_come_back_from_shards_of_any_size(texts: list[str], shard_tokens: int) -> None:
    tokenizer = gpt2()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        with ShardWriter(store, "tokens/t", "train", tokenizer, shard_tokens) as writer:
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
                writer.add(ids, len(text.encode()))
            manifest = writer.finish({})
        back = []
        for shard in manifest.shards:
            tokens = np.frombuffer(store.read(f"tokens/t/{shard.name}.bin")[1024:], np.uint16)
            ends = np.frombuffer(store.read(f"tokens/t/{shard.name}.idx"), np.uint64).astype(int).tolist()
            back += [
                tokenizer.decode(tokens[start + 1 : end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)
            ]
            assert all(tokens[start] == tokenizer.eot for start in [0, *ends[:-1]])
    assert back == texts
