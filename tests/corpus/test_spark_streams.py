"""The parts of the Spark engine that need no Spark: streams of sorted batches decide what the local engine decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytrain.corpus import near
from skytrain.corpus.build import plan_parts as plan_parts_locally
from skytrain.corpus.chunks import Chunk
from skytrain.corpus.dedup import FACTS, HASHED, KEPT, mark_equal
from skytrain.corpus.minhash import MinHash
from skytrain.corpus.spark.parts import BlockFacts, plan_parts, sizes_key
from skytrain.corpus.spark.place import CorpusPlace
from skytrain.corpus.spark.streams import BucketPairs, EqualKeys, LargeStars, SmallStars, contract
from skytrain.storage import open_store
from skytrain.tokens import ShardWriter
from skytrain.tokens.manifest import TokenizerFacts
from skytrain.tokens.spark_shards import COUNTED, SplitPlan

MINHASH = MinHash(bands=1, rows=1, shingle_words=1, hashes=1)


def cut(random: np.random.Generator, *columns: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Columns in batches of random sizes, some of them empty."""
    ends = np.sort(random.integers(0, len(columns[0]) + 1, 6))
    for start, end in zip([0, *ends], [*ends, len(columns[0])], strict=True):
        yield [column[start:end] for column in columns]


@pytest.mark.parametrize("seed", range(3))
def test_equal_keys_find_the_first_document_wherever_batches_end(seed: int) -> None:
    random = np.random.default_rng(seed)
    records = np.zeros(300, HASHED)
    records["hash"], records["second"] = random.integers(0, 20, 300), random.integers(0, 3, 300)
    records["document"] = np.arange(300)
    fate, twin = np.zeros(300, np.uint8), np.full(300, -1, np.int64)
    mark_equal(records, fate, twin, 1)
    records = records[np.lexsort((records["document"], records["second"], records["hash"]))]
    stream, found = EqualKeys(), np.empty(300, np.int64)
    for first, second, documents in cut(random, records["hash"], records["second"], records["document"]):
        found[documents] = stream.twins(first, second, documents)
    assert (twin >= 0).sum() > 200
    assert found.tolist() == twin.tolist()


@pytest.mark.parametrize("buckets", [3, 40])
def test_a_hot_bucket_gives_the_pairs_of_the_local_engine_in_bounded_memory(buckets: int) -> None:
    random = np.random.default_rng(buckets)
    hashes = np.sort(random.integers(0, buckets, 500).astype(np.uint64))
    documents = np.arange(500)
    room = np.empty((100_000, 2), np.int64)
    state = (np.zeros(500, np.bool_), True)
    count, _ = near._candidates(hashes, documents, state, room, (0, 0, 0))
    stream = BucketPairs()
    bands = np.zeros(500, np.int8)
    found = [stream.pairs(*each) for each in cut(random, hashes.astype(np.int64), bands, documents)]
    assert count > 3000
    assert sorted(map(tuple, np.concatenate(found).tolist())) == sorted(map(tuple, room[:count].tolist()))


def star_round(random: np.random.Generator, links: np.ndarray) -> np.ndarray:
    def grouped(stars: Any, nodes: np.ndarray, neighbours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.lexsort((neighbours, nodes))
        made = [stars.links(*each) for each in cut(random, nodes[order], neighbours[order])]
        return np.concatenate([node for node, _ in made]), np.concatenate([neighbour for _, neighbour in made])

    both = np.concatenate([links, links[:, ::-1]])
    small = grouped(SmallStars(), *grouped(LargeStars(), both[:, 0], both[:, 1]))
    return np.unique(np.stack(small, axis=1), axis=0)


@pytest.mark.parametrize("shape", ["chain", "random"])
def test_stars_end_with_every_document_at_the_first_of_its_cluster(shape: str) -> None:
    random = np.random.default_rng(1)
    chain = np.stack([np.arange(1, 200), np.arange(199)], axis=1)
    links = chain if shape == "chain" else np.sort(random.integers(0, 400, (350, 2)), axis=1)[:, ::-1]
    links = links[links[:, 0] != links[:, 1]]
    expected = contract(links)
    rounds = 0
    while rounds < 20:
        rounds += 1
        made = star_round(random, links)
        if np.array_equal(made, links):
            break
        links = made
    assert 2 < rounds < 12
    assert links.tolist() == sorted(expected.tolist())
    roots = dict(expected.tolist())
    assert len(roots) == 199 if shape == "chain" else len(roots) > 200
    assert all(root not in roots and root < node for node, root in roots.items())


def test_parts_planned_from_sizes_are_those_of_the_local_engine(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    counts = [40, 0, 17, 60, 3]
    chunks = [
        Chunk(
            name=f"{i:06d}",
            input_bytes=0,
            documents_read=n,
            bytes_read=0,
            documents=n,
            bytes=0,
            tallies={},
            removed={},
            examples={},
            sizes=(0, 0, 0),
        )
        for i, n in enumerate(counts)
    ]
    place = CorpusPlace.of(open_store(str(tmp_path)), "clean", "work", chunks, 3, MINHASH)
    sizes = [random.integers(1, 500, count).astype(np.uint64) for count in counts]
    fate = random.integers(0, 2, sum(counts)).astype(np.uint8)
    kept = [each == KEPT for each in np.split(fate, np.cumsum(counts)[:-1])]
    blocks = []
    for block in range(3):
        mine = place.chunks_of(block)
        place.store.write(sizes_key(place, block), np.concatenate([sizes[i][kept[i]] for i in mine]).tobytes())
        blocks.append(BlockFacts([int(kept[i].sum()) for i in mine], 0, {}, {}))
    facts = []
    for each in sizes:
        facts.append(np.zeros(len(each), FACTS))
        facts[-1]["bytes"] = each
    locally = [
        [(chunk, rows.tolist()) for chunk, rows in slices] for slices in plan_parts_locally(iter(facts), 1500, fate)
    ]
    planned = [
        [(i, np.flatnonzero(kept[i])[start:end].tolist()) for i, start, end in slices]
        for slices in plan_parts(place, blocks, 1500)
    ]
    assert len(planned) > 5
    assert planned == locally


@pytest.mark.parametrize("shard_tokens", [50, 1000])
def test_shards_planned_from_counts_are_those_that_the_writer_makes(tmp_path: Path, shard_tokens: int) -> None:
    random = np.random.default_rng(shard_tokens)
    store, tokenizer = open_store(str(tmp_path)), TokenizerFacts("t", "h", 300, 0)
    plan = SplitPlan("train", shard_tokens)
    with ShardWriter(store, "p", "train", tokenizer, shard_tokens) as writer:
        for part in range(4):
            counted = np.zeros(30, COUNTED)
            counted["tokens"] = random.integers(1, 80, 30)
            plan.add(part, counted)
            for length in counted["tokens"].tolist():
                writer.add(np.zeros(length - 1, np.uint16), 1)
        writer.finish({})
    made = [(sum(s.end - s.start for s in slices), sum(s.last - s.first for s in slices)) for slices in plan.shards]
    assert made == [(shard.tokens, shard.documents) for shard in writer.shards]
    assert len(made) > 3
