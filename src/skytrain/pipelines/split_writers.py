"""Writes both splits of a data set, and resumes where an earlier call was interrupted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from ..config import DataConfig
from ..corpus import SparkJobs
from ..storage import NotFound, Store
from ..tokens import Shard, ShardWriter, SparkTokens, split_of, write_shards_on_spark


class SplitWriters:
    """The writers of both splits, and their progress in the store: finished shards are not written again."""

    def __init__(
        self, store: Store, folder: str, train: ShardWriter, validation: ShardWriter, validation_fraction: float
    ) -> None:
        self.validation_fraction = validation_fraction
        self.store = store
        self.note = f"{folder}/progress.json"
        self.writers = {"train": train, "validation": validation}
        # For each split: what its finished shards hold, and the first document after them.
        self.state: dict[str, dict[str, Any]] = {
            name: {"shards": [], "text_bytes": 0, "next": [0, 0]} for name in self.writers
        }
        try:
            self.state = json.loads(store.read(self.note))
        except NotFound:
            return
        for name, writer in self.writers.items():
            writer.shards.extend(Shard(**shard) for shard in self.state[name]["shards"])
            writer.text_bytes = self.state[name]["text_bytes"]

    @property
    def first_part(self) -> int:
        return min(state["next"][0] for state in self.state.values())

    def wanted(self, part: int, number: int, document_id: str) -> bool:
        """Whether a document is still to be written; the other split's shards may be far ahead."""
        return [part, number] >= self.state[split_of(document_id, self.validation_fraction)]["next"]

    def add(
        self, split: str, position: list[int], ids: np.ndarray, text_bytes: int, trained: np.ndarray | None = None
    ) -> None:
        """Add a document; `trained` says for each token whether the loss is computed on it, where that is not all."""
        writer = self.writers[split]
        state = self.state[split]
        if position < state["next"]:
            return
        shards = len(writer.shards)
        before = writer.text_bytes
        if trained is None:
            writer.add(ids, text_bytes)
        else:
            writer.add_masked(ids, trained, text_bytes)
        if len(writer.shards) > shards:
            self.state[split] = {
                "shards": [asdict(shard) for shard in writer.shards],
                "text_bytes": before,
                "next": position,
            }
            self.store.write(self.note, json.dumps(self.state).encode())


def fill_on_spark(jobs: SparkJobs, splits: SplitWriters, data: DataConfig, tokens: SparkTokens) -> None:
    """Let Spark write the shards of both splits."""
    filled = write_shards_on_spark(jobs, tokens, data.shard_tokens, data.validation_fraction, data.target_tokens)
    for name, split in filled.items():
        writer = splits.writers[name]
        writer.shards[:] = split.shards
        writer.text_bytes = split.text_bytes
