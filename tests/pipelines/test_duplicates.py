"""`skytrain data duplicates`: every pair, every removed id, clusters, and how they agree with labels."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import NearDedupConfig, SkytrainError, compose
from skytrain.corpus import proposal_probability, recipe_hash
from skytrain.pipelines.duplicates import read_labels
from tests.corpus.reference import jaccard, shingles

NEAR = ("data.near_dedup.enabled=true",)


def edited(text: str, places: list[int]) -> str:
    words = text.split()
    for place in places:
        words[place] = f"new{place}"
    return " ".join(words)


@pytest.fixture(scope="module")
def documents() -> list[tuple[str, str]]:
    """Thirty texts; `far` is similar to the kept one only through `near`."""
    generator = random.Random(5)
    texts = [" ".join(f"w{generator.randrange(3000)}" for _ in range(100)) for _ in range(30)]
    near = edited(texts[0], [90])
    return [
        *((f"text-{i}", text) for i, text in enumerate(texts)),
        ("near", near),
        ("far", edited(near, [50])),
        ("equal-to-near", near),
        ("equal", texts[1]),
        ("text-2", "another text of an id that there is already"),
    ]


@pytest.fixture(scope="module")
def store(documents: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duplicates")
    lines = [json.dumps({"id": id_, "text": text}) + "\n" for id_, text in documents]
    (folder / "text.jsonl").write_text("".join(lines))
    prepared = run("prepare", *settings(folder), *NEAR, "data.near_dedup.min_similarity=0.85")
    assert prepared.exit_code == 0, prepared.output
    return folder


def settings(folder: Path) -> list[str]:
    return [
        *("data=jsonl", f"data.source.paths='{folder}/text.jsonl'", "data.source.id_key=id", "data.bad_records=skip"),
        *("tokenizer=bytes", "data.workers=1", "data.validation_fraction=0", f"store.root='{folder}/store'"),
    ]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_pairs_removed_documents_and_clusters_are_written_by_id(
    store: Path, documents: list[tuple[str, str]], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    done = run("data", "duplicates", "jsonl", f"store.root='{store}/store'", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.exception
    texts = dict(reversed(documents))  # the first of an id
    pairs = pq.read_table(tmp_path / "out/pairs-00000.parquet").to_pylist()
    expected = {
        (a, b): jaccard(shingles(texts[a]), shingles(texts[b]))
        for a, b in (("text-0", "near"), ("text-0", "far"), ("near", "far"))
    }
    assert {(row["a"], row["b"]): row["similarity"] for row in pairs} == pytest.approx(expected)
    removed = pq.read_table(tmp_path / "out/removed-00000.parquet").to_pylist()
    assert [(row["id"], row["reason"], row["duplicate_of"]) for row in removed] == [
        ("near", "near", "text-0"),
        ("far", "near", "text-0"),
        ("equal-to-near", "exact", "near"),
        ("equal", "exact", "text-1"),
        ("text-2", "same_id", "text-2"),
    ]
    assert [row["similarity"] for row in removed[2:]] == [1.0, 1.0, None]
    assert removed[1]["similarity"] == pytest.approx(expected["text-0", "far"]) and removed[1]["similarity"] < 0.85
    clusters = pq.read_table(tmp_path / "out/clusters.parquet").to_pylist()
    assert clusters == [{"kept": "text-0", "documents": 4}, {"kept": "text-1", "documents": 2}]
    assert "3 compared, 2 of similarity 0.85 or more" in done.stdout
    assert "18 bands of 6 rows, 108 permutations, shingles of 5 words" in done.stdout
    assert f"{proposal_probability(0.8, 18, 6):.4f}" == "0.9958"
    assert re.search(r"^0\.80 +0\.9958$", done.stdout, re.MULTILINE)
    assert "clusters   2: 1 of 2, 1 of 4" in done.stdout
    again = run("data", "duplicates", "jsonl", f"store.root='{store}/store'", "--out", str(tmp_path / "out"))
    assert "holds 3 parquet files" in str(again.exception) and "--overwrite" in str(again.exception)


@pytest.mark.parametrize(
    ("name", "labels", "counts"),
    [
        # four documents of one cluster, of which the labels say two and two, and one that was not found
        ("groups.csv", "id,cluster\ntext-0,1\nnear,1\nfar,2\nequal-to-near,2\ntext-5,1\n", (4, 6, 2)),
        ("pairs.jsonl", '{"a": "text-0", "b": "near"}\n{"a": "text-0", "b": "text-7"}\n', (2, 1, 1)),
        (
            "judged.jsonl",
            '{"a": "text-0", "b": "near", "duplicate": true}\n{"a": "text-1", "b": "equal", "duplicate": false}\n',
            (1, 2, 1),
        ),
        ("lists.jsonl", '{"id": "text-0", "duplicates": ["near", "far"]}\n', (2, 3, 2)),
    ],
)
def test_precision_and_recall_count_pairs_of_one_cluster(
    store: Path, tmp_path: Path, name: str, labels: str, counts: tuple[int, int, int]
) -> None:
    (tmp_path / name).write_text(labels)
    words = ("data", "duplicates", "jsonl", f"store.root='{store}/store'", "--labels", str(tmp_path / name), "--json")
    agreement = json.loads(run(*words).stdout)["agreement"]
    true, found, common = counts
    assert (agreement["true_pairs"], agreement["found_pairs"], agreement["common_pairs"]) == counts
    assert (agreement["recall"], agreement["precision"]) == (common / true, common / found)


def test_labels_of_another_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("left,right\n1,2\n")
    with pytest.raises(SkytrainError, match="its columns are left, right"):
        read_labels(str(tmp_path / "x.csv"))
    with pytest.raises(SkytrainError, match="no such file"):
        read_labels(str(tmp_path / "y.csv"))


def test_a_corpus_without_the_record_says_how_to_get_it(store: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(store / "store", tmp_path / "store")
    for folder in tmp_path.glob("store/corpora/*/*/duplicates"):
        shutil.rmtree(folder)
    done = run("data", "duplicates", "jsonl", f"store.root='{tmp_path}/store'")
    assert "run `skytrain prepare` with the same KEY=VALUEs" in str(done.exception)


def near_settings(*overrides: str) -> NearDedupConfig:
    return compose(["data=jsonl", "data.source.paths=x", *overrides]).config.data.near_dedup


def version_of(*overrides: str) -> str:
    return recipe_hash(compose(["data=jsonl", "data.source.paths=x", *overrides]).config.data)


def test_the_search_decides_the_version_and_its_defaults_keep_those_of_before() -> None:
    assert version_of(*NEAR) == "b629892ea06b"
    assert version_of() == version_of("data.near_dedup.bands=4") == "8424214416b8"
    others = [
        version_of(*NEAR, f"data.near_dedup.{each}")
        for each in ("bands=20", "rows=5", "shingle_words=3", "permutations=128", "min_similarity=0.7")
    ]
    assert len({version_of(*NEAR), *others}) == 6
    assert version_of(*NEAR, "data.near_dedup.permutations=108") == version_of(*NEAR)


def test_fewer_permutations_than_the_bands_need_are_refused() -> None:
    with pytest.raises(SkytrainError, match="64 is less than 18 bands x 6 rows = 108"):
        near_settings("data.near_dedup.permutations=64")
    assert near_settings("data.near_dedup.permutations=128").permutations == 128
