from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from skytrain.config import SkytrainError
from skytrain.storage import ScratchFull, Store
from skytrain.tokens import Manifest, ShardWriter, find_manifest, split_of
from skytrain.tokens.manifest import TokenizerFacts

from .conftest import PREFIX, TOKENIZER, documents, write_split


def test_a_shard_is_an_llmc_file_with_every_document_begun_by_the_end_of_text(store: Store) -> None:
    write_split(store, [np.array([1, 2, 3]), np.array([4])])
    data = store.read(f"{PREFIX}/shard-00000.bin")
    header = np.frombuffer(data[:1024], "<i4")
    assert header[:3].tolist() == [20240520, 1, 6] and not header[3:].any()
    assert np.frombuffer(data[1024:], "<u2").tolist() == [999, 1, 2, 3, 999, 4]
    assert np.frombuffer(store.read(f"{PREFIX}/shard-00000.idx"), "<u8").tolist() == [4, 6]


def test_a_vocabulary_past_65536_is_written_as_uint32(store: Store) -> None:
    wide = TokenizerFacts("wide", "ff", vocab_size=128_256, eot=128_000)
    manifest = write_split(store, [np.array([100_000])], tokenizer=wide)
    data = store.read(f"{PREFIX}/shard-00000.bin")
    assert np.frombuffer(data[:12], "<i4").tolist() == [20240801, 7, 2]
    assert np.frombuffer(data[1024:], "<u4").tolist() == [128_000, 100_000]
    assert manifest.dtype == "uint32"


def test_documents_are_never_cut_by_a_shard(store: Store) -> None:
    docs = [np.full(length, 7) for length in (50, 40, 20, 250, 10)]
    manifest = write_split(store, docs, shard_tokens=100)
    assert [shard.tokens for shard in manifest.shards] == [92, 21, 251, 11]
    assert [shard.documents for shard in manifest.shards] == [2, 1, 1, 1]


def test_the_manifest_counts_what_was_written_and_reads_back_equal(store: Store) -> None:
    docs = documents(100)
    manifest = write_split(store, docs)
    assert manifest.tokens == sum(len(ids) + 1 for ids in docs)
    assert manifest.documents == 100 and manifest.text_bytes == sum(4 * len(ids) for ids in docs)
    assert manifest.tokenizer == TOKENIZER and manifest.made_from == {"dataset": "toy", "recipe_hash": "r1"}
    assert find_manifest(store, PREFIX) == manifest
    for shard in manifest.shards:
        found = store.stat(f"{PREFIX}/{shard.name}.bin")
        assert found is not None and found.size == shard.bytes


def test_the_same_work_gives_the_same_bytes_and_may_be_done_again(store: Store) -> None:
    first = write_split(store, documents(50)).to_bytes()
    assert write_split(store, documents(50)).to_bytes() == first


def test_other_content_under_a_finished_prefix_is_refused_and_nothing_is_altered(store: Store) -> None:
    write_split(store, documents(50))
    before = {stat.key: store.read(stat.key) for stat in store.list(PREFIX)}
    with pytest.raises(SkytrainError, match="other content"):
        write_split(store, documents(50, seed=1))
    assert {stat.key: store.read(stat.key) for stat in store.list(PREFIX)} == before


def test_an_unfinished_split_does_not_exist(store: Store) -> None:
    with ShardWriter(store, PREFIX, "train", TOKENIZER, shard_tokens=20) as writer:
        for ids in documents(5):
            writer.add(ids, text_bytes=1)
    assert store.list(PREFIX), "full shards are uploaded as they fill"
    assert find_manifest(store, PREFIX) is None


def test_a_token_beyond_the_vocabulary_is_refused_by_name(store: Store) -> None:
    with (
        ShardWriter(store, PREFIX, "train", TOKENIZER, 100) as writer,
        pytest.raises(SkytrainError, match="token id 1000 is outside"),
    ):
        writer.add(np.array([3, 1000]), text_bytes=1)


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"format": "other"}', b'{"format": "skytrain-tokens-1"}', b"\xff"])
def test_a_manifest_that_cannot_be_understood_is_named(damage: bytes) -> None:
    with pytest.raises(SkytrainError, match=r"there/manifest\.json"):
        Manifest.from_bytes(damage, "there/manifest.json")


def test_the_manifest_holds_no_clock(store: Store) -> None:
    write_split(store, documents(5))
    fields = json.loads(store.read(f"{PREFIX}/manifest.json"))
    assert set(fields) == {
        "format",
        "split",
        "dtype",
        "tokenizer",
        "tokens",
        "documents",
        "text_bytes",
        "shards",
        "made_from",
    }


def test_the_split_of_a_document_follows_its_id_alone() -> None:
    ids = [f"doc-{i}" for i in range(5000)]
    held_out = {id for id in ids if split_of(id, 0.1) == "validation"}
    assert 400 < len(held_out) < 600
    # A larger fraction adds documents to the validation split and takes none away.
    assert held_out <= {id for id in ids if split_of(id, 0.2) == "validation"}
    assert not any(split_of(id, 0.0) == "validation" for id in ids)
    assert all(split_of(id, 1.0) == "validation" for id in ids)


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_full_disk_of_temporary_files_is_told_with_the_room_that_a_shard_takes(store: Store, buffering: int) -> None:
    with (
        pytest.raises(ScratchFull, match=r"skytrain-shard-.*\n.*a shard of each split, 200 B at most\n.*TMPDIR"),
        ShardWriter(store, PREFIX, "train", TOKENIZER, 100) as writer,
    ):
        writer._file.close()
        writer._file = Path("/dev/full").open("wb", buffering)  # noqa: SIM115
        writer.add(np.array([1, 2, 3]), 3)
        writer.finish({})
    assert store.list() == []
