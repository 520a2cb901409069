"""Clusters that no single task can hold: links in many files are joined in rounds on Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.spark import spark_path

from skytrain.config import compose
from skytrain.corpus import FinishedStages, open_jobs
from skytrain.corpus.chunks import Chunk
from skytrain.corpus.minhash import MinHash
from skytrain.corpus.near import COMPARED, compared_records
from skytrain.corpus.spark.components import find_components
from skytrain.corpus.spark.place import CorpusPlace
from skytrain.corpus.spark.streams import contract
from skytrain.corpus.spark.tables import PAIR, RecordTable, TableWriter
from skytrain.storage import open_store


@pytest.mark.slow
def test_links_of_many_tasks_are_joined_in_rounds_until_none_changes(tmp_path: Path) -> None:
    sys.path[:0] = spark_path()
    random, store = np.random.default_rng(3), open_store(str(tmp_path))
    chunks = [
        Chunk(
            name="000000-000000-last",
            input_bytes=0,
            documents_read=3000,
            bytes_read=0,
            documents=3000,
            bytes=0,
            tallies={},
            removed={},
            examples={},
            sizes=(0, 0, 0),
        )
    ]
    place = CorpusPlace.of(store, "clean", "work", chunks, 1, MinHash(bands=1, rows=1, shingle_words=1, hashes=1))
    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    edges = np.concatenate([chain, np.sort(random.integers(1000, 3000, (1500, 2)), axis=1)])
    edges = random.permutation(edges[edges[:, 0] < edges[:, 1]])
    for part, some in enumerate(np.array_split(edges, 12)):
        writer = TableWriter(place, "edges", COMPARED)
        assert list(writer.add(part, compared_records(some, np.full(len(some), 0.9)))) == []
        assert len(list(writer.finish())) == 1
    table = RecordTable("edges", tuple((part, 0, len(some)) for part, some in enumerate(np.array_split(edges, 12))))
    with open_jobs(compose(["spark.master=local[2]"]).config.spark) as jobs:
        links, rounds = find_components(jobs, FinishedStages(store, "work"), place, table, 0.8, links_per_task=300)
    found = np.concatenate([links.read_all(place, block, PAIR) for block in links.blocks()])
    assert 3 <= rounds < 15
    assert sorted(found.tolist()) == sorted(map(tuple, contract(edges).tolist()))
