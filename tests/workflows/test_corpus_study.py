"""The corpus study, from an empty folder: prepare, every duplicate, precision and recall; local and on Spark alike."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from tests.corpus.reference import jaccard, shingles
from tests.support.spark import spark_environment, write_documents

from .shell import Shell

SETTINGS = (
    *("data=jsonl", "data.source.paths=crawl/*.jsonl", "data.source.id_key=id", "data.bad_records=skip"),
    *("data.near_dedup.enabled=true", "data.near_dedup.bands=24", "data.near_dedup.rows=5"),
    *("data.validation_fraction=0.1", "tokenizer=bytes"),
)


def label_pairs(folder: Path) -> list[dict[str, str]]:
    """Return all pairs of similar documents by an exact search; of several documents of one id, the first counts."""
    texts: dict[str, str] = {}
    for path in sorted((folder / "crawl").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if line.startswith('{"'):
                row = json.loads(line)
                texts.setdefault(row["id"], row["text"])
    sets = {id_: shingles(text) for id_, text in texts.items()}
    return [{"a": a, "b": b} for a, b in combinations(sets, 2) if jaccard(sets[a], sets[b]) >= 0.8]


@pytest.mark.slow
def test_a_corpus_is_studied_alike_on_this_machine_and_on_spark(tmp_path: Path) -> None:
    write_documents(tmp_path / "crawl", 600, files=3)
    labels = label_pairs(tmp_path)
    assert len(labels) > 50
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in labels))
    shell = Shell(tmp_path, **spark_environment())
    found = {}
    for engine in ("local", "spark"):
        store = f"store.root={engine}"
        master = ("spark.master=local[2]",) if engine == "spark" else ()
        shell.run("prepare", *SETTINGS, f"engine={engine}", *master, store)
        told = shell.run("data", "duplicates", "jsonl", store, "--labels", "labels.jsonl", "--out", f"{engine}-out")
        assert "24 bands of 5 rows, 120 permutations" in told.stdout
        judged = json.loads(
            shell.run("data", "duplicates", "jsonl", store, "--labels", "labels.jsonl", "--json").stdout
        )
        assert judged["agreement"]["recall"] > 0.99
        shell.run("data", "export", "jsonl", store, "--kept", "--compression", "snappy", "--out", f"{engine}-kept")
        folders = (f"{engine}-out", f"{engine}-kept", f"{engine}/corpora", f"{engine}/tokens")
        found[engine] = {
            str(path.relative_to(tmp_path)).replace(engine, "", 1): path.read_bytes()
            for folder in folders
            for path in sorted((tmp_path / folder).rglob("*"))
            if path.is_file() and path.name != "spark.json"
        }
    assert found["local"].keys() == found["spark"].keys()
    assert [name for name in found["local"] if found["local"][name] != found["spark"][name]] == []
    assert {name.rpartition("/")[2] for name in found["local"] if name.startswith("-out")} == {
        "pairs-00000.parquet",
        "removed-00000.parquet",
        "clusters.parquet",
    }
