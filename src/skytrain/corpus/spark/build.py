"""Builds a corpus on Spark. Every decision is the local engine's, so the parts, report and manifest have its bytes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from ...config import DataConfig, SkytrainError
from ...storage import Store, StoreError
from ..build import TARGET_SLACK, needed_text
from ..chunks import EXAMPLES, Chunk
from ..dedup import EXACT, NEAR, SAME_ID
from ..duplicates import REMOVED
from ..finish import CleanedCorpus, check_documents, finish_corpus
from ..manifest import CorpusManifest, CorpusPart, corpus_folder
from ..minhash import MinHash
from ..report import DuplicateSummary, shown_places
from .cleaning import SparkCleaning
from .equal import find_equal
from .found import FoundTables, write_found
from .jobs import FinishedStages, SparkFailure, SparkJobs
from .parts import BlockFacts, PartsPlan, measure_blocks, plan_parts, write_parts
from .place import CorpusPlace
from .similar import SimilarSearch, find_similar
from .tables import RecordTable

TABLES_REVISION = 2  # raised when the tables of a search change: those of an interrupted one are then not read
BLOCKS_PER_PARTITION = 4  # blocks are spread over partitions by hash: several even out


def write_corpus_on_spark(store: Store, data: DataConfig, source: Any, version: str, jobs: SparkJobs) -> CorpusManifest:
    """Clean the source and write its parts and manifest, as `write_corpus` does on this machine.

    If killed at any moment and called again, it continues after the last finished stage and writes the same bytes.
    """
    folder = corpus_folder(data.name, version)
    try:
        cleaned, plan, found, near_facts = _clean_and_compare(store, folder, data, source, jobs)
        check_documents(store, folder, data, cleaned)
    except (StoreError, SparkFailure):
        raise  # keep finished stages for the next call
    except SkytrainError:
        store.delete_all(f"{folder}/clean")  # a corrected input has another version and would never reuse these
        store.delete_all(f"{folder}/spark")
        raise
    stages = FinishedStages(store, plan.place.work)
    write_found(jobs, stages, folder, found)
    written = stages.get("parts", lambda: [asdict(part) for part in write_parts(jobs, plan)])
    parts = [CorpusPart(**part) for part in written]
    manifest = finish_corpus(store, data, source, version, cleaned, parts)
    store.write(f"{folder}/spark.json", (json.dumps(_facts(jobs, plan, near_facts), indent=1) + "\n").encode())
    store.delete_all(f"{folder}/spark")
    return manifest


def _clean_and_compare(
    store: Store, folder: str, data: DataConfig, source: Any, jobs: SparkJobs
) -> tuple[CleanedCorpus, PartsPlan, FoundTables, dict[str, Any]]:
    """Clean files until the source ends or enough text remains after deduplication, like the local engine."""
    cleaning = SparkCleaning(jobs, store, folder, data, source)
    needed = needed_text(data, source)
    goal = needed * TARGET_SLACK if needed else math.inf
    while True:
        chunks, complete = cleaning.until(goal)
        place = _place(store, folder, chunks, jobs, MinHash.of(data.near_dedup))
        stages = FinishedStages(store, place.work)
        found, facts = _find_duplicates(jobs, stages, place, data)
        plan = PartsPlan(place, found.removed, folder)
        measured = stages.get("measure", partial(measure_blocks, jobs, plan))
        blocks = [BlockFacts(*facts) for facts in measured]
        left = sum(block.kept_bytes for block in blocks)
        if complete or needed is None or left >= needed:
            summary = _summary(place, blocks, found.removed, facts)
            plan = replace(plan, parts=tuple(plan_parts(place, blocks, data.part_bytes)))
            return CleanedCorpus(chunks, summary, complete, cleaning.examples(chunks)), plan, found, facts
        goal = sum(chunk.bytes for chunk in chunks) * needed / max(1, left) * TARGET_SLACK


def _place(store: Store, folder: str, chunks: list[Chunk], jobs: SparkJobs, minhash: MinHash) -> CorpusPlace:
    """Return the place of a search, whose work folder is named by the number of chunks.

    With a target, the search may be repeated over more chunks.
    """
    jobs.shuffle_partitions = jobs.partitions_for(sum(chunk.documents for chunk in chunks))
    work = f"{folder}/spark/{len(chunks):06d}-{jobs.shuffle_partitions}-r{TABLES_REVISION}"
    blocks = BLOCKS_PER_PARTITION * jobs.shuffle_partitions
    return CorpusPlace.of(store, f"{folder}/clean", work, chunks, blocks, minhash)


def _find_duplicates(
    jobs: SparkJobs, stages: FinishedStages, place: CorpusPlace, data: DataConfig
) -> tuple[FoundTables, dict[str, Any]]:
    equal = stages.table("equal", lambda: find_equal(jobs, jobs.share(place), data.exact_dedup))
    if not data.near_dedup.enabled:
        return FoundTables(place, (equal,)), {"clusters": 0, "cluster_sizes": {}, "beyond": 0}
    search = SimilarSearch(place=place, removed=equal, min_similarity=data.near_dedup.min_similarity)
    similar = find_similar(jobs, stages, search)
    found = FoundTables(place, (equal, similar.near), similar.needed, similar.compared)
    return found, similar.facts


def _summary(
    place: CorpusPlace, blocks: list[BlockFacts], removed: tuple[RecordTable, ...], facts: dict[str, Any]
) -> DuplicateSummary:
    count = {fate: sum(block.removed[str(fate)] for block in blocks) for fate in (SAME_ID, EXACT, NEAR)}
    first = {
        fate: [number for block in blocks for number in block.first[str(fate)]][:EXAMPLES] for fate in (SAME_ID, EXACT)
    }
    return DuplicateSummary(
        same_id=count[SAME_ID],
        exact=count[EXACT],
        near=count[NEAR],
        first_same_id=first[SAME_ID],
        first_exact=first[EXACT],
        shown_near=_shown_near(place, blocks, removed[-1], count[NEAR]) if count[NEAR] else [],
        clusters=facts["clusters"],
        cluster_sizes=facts["cluster_sizes"],
        beyond=facts["beyond"],
    )


def _shown_near(place: CorpusPlace, blocks: list[BlockFacts], near: RecordTable, count: int) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *(block.removed[str(NEAR)] for block in blocks)])
    shown = []
    for position in shown_places(count).tolist():
        block = int(np.searchsorted(ends, position, side="right")) - 1
        record = near.read_all(place, block, REMOVED)[position - int(ends[block])]
        shown.append((int(record["number"]), int(record["twin"])))
    return shown


def _facts(jobs: SparkJobs, plan: PartsPlan, near_facts: dict[str, Any]) -> dict[str, Any]:
    """Return what this session's work took. It is for people, and not part of the corpus."""
    documents = max(1, plan.place.documents)
    shuffled = sum(stage.shuffle_bytes for stage in jobs.facts.values())
    return {
        "spark": jobs.session.version,
        "documents": plan.place.documents,
        "shuffle_bytes_per_document": round(shuffled / documents, 1),
        "near_duplicates": near_facts,
        "stages": {name: asdict(stage) for name, stage in jobs.facts.items()},
    }
