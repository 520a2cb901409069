"""Duplicates: what the search of a preparation found, how complete it can be, and how it agrees with labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import Config, NearDedupConfig, SkytrainError, build, plural, upgrade
from ..corpus import (
    CorpusManifest,
    duplicate_files,
    find_corpus,
    find_corpus_by_name,
    proposal_probability,
    read_duplicates,
)
from ..report import text_table
from ..runs import Reporter
from ..storage import Store, open_store, parse_json, read_data

CURVE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
CLUSTERS_FILE = "clusters.parquet"


@dataclass(frozen=True)
class Agreement:
    """How the clusters agree with labelled pairs; a pair is found if both documents are in one cluster."""

    labels: str
    true_pairs: int
    found_pairs: int  # among the documents that the labels name
    common_pairs: int

    @property
    def precision(self) -> float | None:
        return self.common_pairs / self.found_pairs if self.found_pairs else None

    @property
    def recall(self) -> float | None:
        return self.common_pairs / self.true_pairs if self.true_pairs else None


@dataclass(frozen=True)
class DuplicatesSummary:
    """What was removed from a corpus, the clusters it formed, and how the search was set."""

    corpus: str
    settings: NearDedupConfig
    removed: dict[str, int]  # by reason
    compared: int | None  # pairs whose exact similarity is known; None: near-duplicates were not searched for
    similar: int | None
    cluster_sizes: dict[int, int]  # clusters by their number of documents
    curve: list[tuple[float, float]]  # similarity, probability that a pair is proposed
    agreement: Agreement | None
    files: list[str]

    def to_json(self) -> str:
        values = asdict(self)
        if self.agreement is not None:
            values["agreement"] |= {"precision": self.agreement.precision, "recall": self.agreement.recall}
        return json.dumps(values, indent=1)

    def to_text(self) -> str:
        near = self.settings
        removed = ", ".join(f"{count:,} {reason}" for reason, count in self.removed.items() if count) or "nothing"
        rows = [("corpus", self.corpus), ("removed", removed)]
        if self.compared is not None:
            rows += [
                (
                    "pairs",
                    f"{self.compared:,} compared, {self.similar:,} of similarity {near.min_similarity:g} or more",
                ),
                (
                    "search",
                    f"{near.bands} bands of {near.rows} rows, {near.permutations or near.bands * near.rows} permutations, "
                    f"shingles of {plural(near.shingle_words, 'word')}",
                ),
            ]
        clusters = sum(self.cluster_sizes.values())
        sizes = ", ".join(f"{count:,} of {size:,}" for size, count in sorted(self.cluster_sizes.items())[:8])
        more = ", ..." if len(self.cluster_sizes) > 8 else ""
        rows.append(("clusters", f"{clusters:,}: {sizes}{more}" if clusters else "none"))
        if (agreement := self.agreement) is not None:
            rows += [
                (
                    "labels",
                    f"{agreement.labels}: {agreement.true_pairs:,} pairs, {agreement.common_pairs:,} of them found",
                ),
                ("recall", _share(agreement.recall)),
                ("precision", f"{_share(agreement.precision)} of {agreement.found_pairs:,} found pairs"),
            ]
        lines = [f"{name:<10} {value}" for name, value in rows]
        if self.compared is not None:
            curve = [("SIMILARITY", "PROPOSED"), *((f"{s:.2f}", f"{p:.4f}") for s, p in self.curve)]
            lines += [
                "",
                f"probability that a pair is compared, 1 - (1 - s^{near.rows})^{near.bands}:",
                text_table(curve),
            ]
        return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def summarize_duplicates(
    config: Config, name: str | None, out: str | None, labels: str | None, overwrite: bool, reporter: Reporter
) -> DuplicatesSummary:
    """Summarize the duplicates of corpus `name`, or of the one that `config.data` describes.

    With `out`, copy the parquet files there and add the clusters.
    """
    store = open_store(config.store).patient(config.store.patience)
    corpus = find_corpus_by_name(store, name) if name else find_corpus(store, config.data)
    files = duplicate_files(store, corpus)
    settings = _near_settings(corpus)
    removed = Counter({"exact": 0, "near": 0, "same_id": 0})
    parents: dict[str, str] = {}
    for batch in read_duplicates(store, files["removed"], ["id", "reason", "duplicate_of"]):
        removed.update(batch["reason"].tolist())
        told_apart = batch["reason"] != "same_id"  # a second document of one id cannot be told from the first
        parents.update(zip(batch["id"][told_apart], batch["duplicate_of"][told_apart], strict=True))
    compared = similar = None
    if settings.enabled:
        compared = similar = 0
        for batch in read_duplicates(store, files["pairs"], ["similarity"]):
            compared += len(batch["similarity"])
            similar += int((batch["similarity"] >= settings.min_similarity).sum())
    kept_of = {id_: _kept(parents, id_) for id_ in parents}
    sizes = Counter(kept_of.values())
    agreement = _agreement(labels, kept_of) if labels else None
    urls = [store.url(key) for keys in files.values() for key in keys]
    if out is not None:
        urls = list(_copy(store, files, open_store(out), sizes, overwrite, reporter))
    return DuplicatesSummary(
        corpus=f"{corpus.dataset}@{corpus.version}, {corpus.documents:,} documents kept",
        settings=settings,
        removed=dict(removed),
        compared=compared,
        similar=similar,
        cluster_sizes=dict(sorted(Counter(count + 1 for count in sizes.values()).items())),
        curve=[(each, proposal_probability(each, settings.bands, settings.rows)) for each in CURVE],
        agreement=agreement,
        files=urls,
    )


def _near_settings(corpus: CorpusManifest) -> NearDedupConfig:
    return build(NearDedupConfig, upgrade(NearDedupConfig, corpus.settings["near_dedup"]), "data.near_dedup")


def _kept(parents: dict[str, str], id_: str) -> str:
    """Return the document that is kept of a removed one's cluster: equal texts may be near-duplicates of others."""
    seen = set()
    while id_ in parents and id_ not in seen:  # in a file that Skytrain did not write, two may name each other
        seen.add(id_)
        id_ = parents[id_]
    return id_


def _copy(
    store: Store, files: dict[str, list[str]], target: Store, sizes: Counter[str], overwrite: bool, reporter: Reporter
) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    there = [stat.key for stat in target.list() if stat.key.endswith(".parquet")]
    if there and not overwrite:
        raise SkytrainError(
            f"{target.url('')} holds {plural(len(there), 'parquet file')}: {', '.join(there[:3])}\n"
            "  choose another folder, or replace them with --overwrite"
        )
    for key in there:
        target.delete(key)
    keys = [key for some in files.values() for key in some]
    for number, key in enumerate(keys, start=1):
        file = key.rpartition("/")[2]
        target.write(file, read_data(store, key))
        reporter.progress("copy", number, len(keys), file)
        yield target.url(file)
    rows = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    table = pa.table(
        {
            "kept": pa.array([id_ for id_, _ in rows], pa.large_string()),
            "documents": pa.array([count + 1 for _, count in rows], pa.int64()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    target.write(CLUSTERS_FILE, sink.getvalue().to_pybytes())
    yield target.url(CLUSTERS_FILE)


def _agreement(labels: str, kept_of: dict[str, str]) -> Agreement:
    """Compare the clusters with a file of labels, see `read_labels`."""
    groups, pairs, negatives = read_labels(labels)
    if groups is not None:
        return _grouped_agreement(labels, groups, kept_of)
    named = {id_ for pair in (*pairs, *negatives) for id_ in pair}
    common = sum(_together(kept_of, pair) for pair in pairs)
    if negatives:  # the labels say which pairs they judge
        found = common + sum(_together(kept_of, pair) for pair in negatives)
    else:
        clusters = Counter(kept_of.get(id_, id_) for id_ in named)
        found = sum(_pairs_of(count) for count in clusters.values())
    return Agreement(labels, len(pairs), found, common)


def _grouped_agreement(labels: str, groups: dict[str, str], kept_of: dict[str, str]) -> Agreement:
    """Count pairs by the sizes of clusters, groups and their intersections: a large one has too many to list."""
    clusters = Counter(kept_of.get(id_, id_) for id_ in groups)
    both = Counter((kept_of.get(id_, id_), group) for id_, group in groups.items())
    return Agreement(
        labels=labels,
        true_pairs=sum(map(_pairs_of, Counter(groups.values()).values())),
        found_pairs=sum(map(_pairs_of, clusters.values())),
        common_pairs=sum(map(_pairs_of, both.values())),
    )


def _pairs_of(count: int) -> int:
    return count * (count - 1) // 2


def _together(kept_of: dict[str, str], pair: frozenset[str]) -> bool:
    one, other = pair
    return kept_of.get(one, one) == kept_of.get(other, other)


Pairs = set[frozenset[str]]


def read_labels(path: str) -> tuple[dict[str, str] | None, Pairs, Pairs]:
    """Read labels from JSON lines, CSV or parquet; return groups by id, or pairs that are and are not duplicates.

    Columns are `id` and `cluster`; or `a`, `b` and optionally `duplicate` (true or false); or `id` and `duplicates`, a
    list of ids.
    """
    rows = list(_label_rows(path))
    columns = set(rows[0]) if rows else set()
    pairs: Pairs = set()
    negatives: Pairs = set()
    if {"id", "cluster"} <= columns:
        return {str(row["id"]): str(row["cluster"]) for row in rows}, pairs, negatives
    if {"id", "duplicates"} <= columns:
        for row in rows:
            for other in _listed(row["duplicates"]):
                pairs |= {frozenset((str(row["id"]), str(other)))}
    elif {"a", "b"} <= columns:
        for row in rows:
            (pairs if _is_true(row.get("duplicate", True)) else negatives).add(
                frozenset((str(row["a"]), str(row["b"])))
            )
    else:
        raise SkytrainError(
            f"--labels {path}: its columns are {', '.join(sorted(columns)) or 'missing: it is empty'}\n"
            "  it needs `id` and `cluster`, or `a` and `b` (and `duplicate`), or `id` and `duplicates` (a list)"
        )
    return None, {pair for pair in pairs if len(pair) == 2}, {pair for pair in negatives if len(pair) == 2}


def _label_rows(path: str) -> Iterator[dict[str, Any]]:
    file = Path(path)
    if not file.is_file():
        raise SkytrainError(f"--labels {path}: no such file")
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            yield from pq.read_table(file).to_pylist()
        elif file.suffix == ".csv":
            import csv

            with file.open(newline="") as lines:
                yield from csv.DictReader(lines)
        else:
            with file.open() as lines:
                yield from (parse_json(line) for line in lines if line.strip())
    except ValueError as error:  # also pyarrow's errors
        raise SkytrainError(
            f"--labels {path}: {error}\n  it is read as parquet or CSV by its ending, else as JSON lines"
        ) from None


def _listed(value: Any) -> Iterable[Any]:
    """Return a list of ids; CSV files have them separated by white space."""
    return value.split() if isinstance(value, str) else value or ()


def _is_true(value: Any) -> bool:
    return value.strip().lower() in ("1", "true", "yes") if isinstance(value, str) else bool(value)
