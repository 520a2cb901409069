from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from skytrain.config import SkytrainError
from skytrain.storage import Store
from skytrain.tokens import TokenSplit
from skytrain.tokens.manifest import TokenizerFacts

from .conftest import PREFIX, documents, write_split


def stream(store: Store, shard: str) -> np.ndarray:
    return np.frombuffer(store.read(f"{PREFIX}/{shard}.bin")[1024:], "<u2")


def test_windows_follow_each_other_within_a_shard_and_share_one_token(store: Store) -> None:
    manifest = write_split(store, documents(100), shard_tokens=500)
    split = TokenSplit.open(store, PREFIX)
    expected = []
    for shard in manifest.shards:
        tokens = stream(store, shard.name)
        expected += [tokens[start : start + 17] for start in range(0, len(tokens) - 16, 16)]
    assert len(manifest.shards) > 3 and split.windows(16) == len(expected)
    batch = split.batch(np.arange(len(expected)), 16)
    assert batch.windows.dtype == torch.int64 and np.array_equal(batch.windows.numpy(), expected)
    assert batch.mask is None and batch.document_starts is None


def test_a_batch_takes_windows_of_many_shards_in_any_order(store: Store) -> None:
    write_split(store, documents(100), shard_tokens=300)
    split = TokenSplit.open(store, PREFIX)
    everything = split.batch(np.arange(split.windows(16)), 16).windows
    chosen = np.random.default_rng(0).permutation(split.windows(16))
    assert torch.equal(split.batch(chosen, 16).windows, everything[chosen])


def test_shards_serve_any_sequence_length_and_report_what_is_left(store: Store) -> None:
    write_split(store, [np.arange(99), np.arange(49)], shard_tokens=100)  # shards of 100 and 50 tokens
    split = TokenSplit.open(store, PREFIX)
    assert (split.windows(33), split.leftover_tokens(33)) == (4, 16)  # 3 x 33 + 1 of 100, 1 x 33 + 1 of 50
    assert (split.windows(60), split.leftover_tokens(60)) == (1, 39 + 50)
    assert (split.windows(100), split.leftover_tokens(100)) == (0, 150)


def test_uint32_tokens_are_read(store: Store) -> None:
    write_split(store, [np.array([100_000, 5, 6])], tokenizer=TokenizerFacts("wide", "ff", 128_256, 128_000))
    assert TokenSplit.open(store, PREFIX).batch(np.array([0]), 3).windows.tolist() == [[128_000, 100_000, 5, 6]]


def test_a_worker_process_receives_paths_not_tokens(store: Store) -> None:
    write_split(store, [np.arange(900).repeat(100)], shard_tokens=100_000)
    split = TokenSplit.open(store, PREFIX)
    before = split.batch(np.arange(3), 64).windows
    sent = pickle.dumps(split)
    assert len(sent) < 2000
    assert torch.equal(pickle.loads(sent).batch(np.arange(3), 64).windows, before)


def truncated(data: bytes) -> bytes:
    return data[:-10]


def altered(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def of_another_dtype(data: bytes) -> bytes:
    return np.array([20240801, 7], "<i4").tobytes() + data[8:]


def without_header(data: bytes) -> bytes:
    return bytes(1024) + data[1024:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "truncated"),
        (altered, "was altered"),
        (of_another_dtype, "uint32 tokens, the manifest says"),
        (without_header, "no shard header"),
    ],
)
def test_a_damaged_shard_is_found_before_first_use_and_named(
    store: Store, damage: Callable[[bytes], bytes], message: str
) -> None:
    write_split(store, documents(100))
    path = store.local_path(f"{PREFIX}/shard-00001.bin")
    assert path is not None
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SkytrainError, match=message) as caught:
        TokenSplit.open(store, PREFIX)
    assert "shard-00001.bin" in str(caught.value)


def test_a_missing_shard_is_named(store: Store) -> None:
    write_split(store, documents(100))
    store.delete(f"{PREFIX}/shard-00002.bin")
    with pytest.raises(SkytrainError, match=r"shard-00002\.bin is missing"):
        TokenSplit.open(store, PREFIX)


def test_a_prefix_without_a_manifest_says_to_prepare(store: Store) -> None:
    with pytest.raises(SkytrainError, match="skytrain prepare"):
        TokenSplit.open(store, PREFIX)


def test_tokens_of_another_tokenizer_or_a_larger_vocabulary_are_refused(store: Store) -> None:
    write_split(store, documents(5))
    with pytest.raises(SkytrainError, match=r"made with tokenizer toy .* not with this run's"):
        TokenSplit.open(store, PREFIX, expect_tokenizer_hash="another")
    with pytest.raises(SkytrainError, match="more than the model's vocabulary of 512"):
        TokenSplit.open(store, PREFIX, vocab_size=512)
    assert TokenSplit.open(store, PREFIX, expect_tokenizer_hash="a1b2c3", vocab_size=1000).manifest.tokens
