"""A corpus is parts, then a manifest; the same input gives the same bytes, and a failure leaves no manifest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.corpora import read_corpus

from skytrain.config import SkytrainError, compose
from skytrain.corpus import Document, corpus_version, open_corpus, recipe_hash, write_corpus
from skytrain.storage import Store, open_store

DATA = compose(
    ["data=text", "data.source.paths=x", "data.name=mine", "data.min_chars=5", "data.part_bytes=100"]
).config.data


@dataclasses.dataclass
class Listed:
    texts: list[str]
    fail_at: int | None = None

    def documents(self) -> Iterator[Document]:
        for i, text in enumerate(self.texts):
            if i == self.fail_at:
                raise SkytrainError("broken here")
            yield Document(f"d{i}", text, "listed", {"n": i})

    def fingerprint(self) -> dict[str, str]:
        return {"sha256": hashlib.sha256("\0".join(self.texts).encode()).hexdigest()}


TEXTS = [f"document number {i} \x00 é <|endoftext|>\n" for i in range(10)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_documents_come_back_whole_from_parts_of_bounded_size(store: Store) -> None:
    source = Listed(TEXTS)
    manifest = write_corpus(store, DATA, source, "v1")
    assert list(read_corpus(store, manifest)) == list(source.documents())
    assert len(manifest.parts) > 2
    assert all(part.text_bytes < 200 for part in manifest.parts)
    assert open_corpus(store, "mine", "v1") == manifest
    assert manifest.recipe == recipe_hash(DATA)


def test_removed_documents_are_counted_by_rule(store: Store) -> None:
    manifest = write_corpus(store, DATA, Listed(["abc", "long enough", "", "long enough", "another one"]), "v1")
    assert manifest.removed == {"min_chars": 2, "exact_dedup": 1}
    assert (manifest.documents_read, manifest.documents) == (5, 2)
    assert [d.id for d in read_corpus(store, manifest)] == ["d1", "d4"]


def test_duplicates_stay_when_the_rule_is_off(store: Store) -> None:
    manifest = write_corpus(store, dataclasses.replace(DATA, exact_dedup=False), Listed(["same text"] * 3), "v1")
    assert (manifest.documents, manifest.removed) == (3, {"min_chars": 0})


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    bodies = []
    for place in ("one", "two"):
        store = open_store(str(tmp_path / place))
        write_corpus(store, DATA, Listed(TEXTS), "v1")
        bodies.append({stat.key: store.read(stat.key) for stat in store.list("corpora")})
    assert bodies[0] == bodies[1]


def test_a_source_that_fails_half_way_leaves_no_manifest(store: Store) -> None:
    with pytest.raises(SkytrainError, match="broken here"):
        write_corpus(store, DATA, Listed(TEXTS, fail_at=8), "v1")
    assert store.list("corpora") == []


def test_a_corpus_with_nothing_left_names_the_rule(store: Store) -> None:
    with pytest.raises(SkytrainError, match=r"nothing is left of 2 documents: min_chars removed 2\n"):
        write_corpus(store, DATA, Listed(["a", "b"]), "v1")
    with pytest.raises(SkytrainError, match="yielded no documents"):
        write_corpus(store, DATA, Listed([]), "v1")
    assert store.list("corpora") == []


def test_an_altered_part_is_named(store: Store) -> None:
    manifest = write_corpus(store, DATA, Listed(TEXTS), "v1")
    key = f"corpora/mine/v1/{manifest.parts[1].name}"
    store.write(key, store.read(key)[:-1] + b"x")
    with pytest.raises(SkytrainError, match=r"part-00001\.parquet is damaged: it was altered"):
        list(read_corpus(store, manifest))


def test_the_version_follows_what_decides_the_bytes_and_nothing_else() -> None:
    version = corpus_version(DATA, {"a": 1})
    assert len(version) == 12
    assert corpus_version(dataclasses.replace(DATA, version="other"), {"a": 1}) == version
    assert corpus_version(dataclasses.replace(DATA, min_chars=6), {"a": 1}) != version
    assert corpus_version(DATA, {"a": 2}) != version
    assert recipe_hash(DATA) == recipe_hash(dataclasses.replace(DATA, version="other")) != version
    assert recipe_hash(dataclasses.replace(DATA, min_chars=6)) != recipe_hash(DATA)
