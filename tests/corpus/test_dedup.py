"""Duplicates: signatures estimate similarity, the first of a group stays, and pairs that are not similar are not joined."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.reference import jaccard, shingles, simple_lower, word_runs

from skytrain.corpus import near, partitions
from skytrain.corpus.decontaminate import Decontaminator, examples_in
from skytrain.corpus.dedup import EXACT, FACTS, KEPT, NEAR, SAME_ID, Duplicates, find_duplicates
from skytrain.corpus.minhash import MinHash, has_words, permutations
from skytrain.corpus.near import COMPARED, NearInputs, least_equal

MASK = 2**64 - 1
MINHASH = MinHash(bands=18, rows=6, shingle_words=5, hashes=108)


def words(count: int, generator: random.Random) -> list[str]:
    return [f"w{generator.randrange(5000)}" for _ in range(count)]


def edited(text: list[str], changes: int, generator: random.Random) -> list[str]:
    text = list(text)
    for place in generator.sample(range(len(text)), changes):
        text[place] = f"new{generator.randrange(10**6)}"
    return text


def plain_signature(text: str, minhash: MinHash) -> list[int]:
    """The kernel's arithmetic with Python's integers."""

    def mix(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
        return value ^ (value >> 31)

    hashes = []
    for word in word_runs(text):
        value = 0xCBF29CE484222325
        for letter in simple_lower(word):
            value = (value ^ ord(letter)) * 0x100000001B3 & MASK
        hashes.append(mix(value))
    width = min(minhash.shingle_words, len(hashes))
    found = []
    for i in range(len(hashes) - width + 1 if hashes else 0):
        value = 0
        for word_hash in hashes[i : i + width]:
            value = (value * 0x9E3779B97F4A7C15 + word_hash) & MASK
        found.append(mix(value) >> 32)
    factors, offsets = (array.tolist() for array in permutations(minhash.hashes))
    return [
        min((factor * x + offset) % 2**32 for x in found) if found else 2**32 - 1
        for factor, offset in zip(factors, offsets, strict=True)
    ]


@pytest.mark.parametrize("minhash", [MINHASH, MinHash(bands=4, rows=3, shingle_words=2, hashes=20)])
def test_the_kernel_does_what_plain_python_does(minhash: MinHash) -> None:
    texts = [
        "One two THREE four five six; seven.",
        "naïve Straße 日本語 テキスト ΣΑΣ İstanbul x",
        "two words",
        "",
        "... !!",
        "a" * 300 + " b",
    ]
    assert minhash.signatures(texts).tolist() == [plain_signature(text, minhash) for text in texts]
    assert has_words(minhash.signatures(texts)).tolist() == [True, True, True, False, False, True]


def test_signatures_estimate_the_jaccard_similarity() -> None:
    generator = random.Random(1)
    errors = []
    for changes in (0, 2, 5, 10, 20, 60):
        a = words(300, generator)
        b = edited(a, changes, generator)
        rows = MINHASH.signatures([" ".join(a), " ".join(b)])
        errors.append(abs((rows[0] == rows[1]).mean() - jaccard(shingles(" ".join(a)), shingles(" ".join(b)))))
    assert max(errors) < 0.15
    assert np.mean(errors) < 0.06


def search(
    texts: list[str],
    folder: Path,
    ids: list[str] | None = None,
    *,
    exact: bool = True,
    near: bool = True,
    minhash: MinHash = MINHASH,
    min_similarity: float = 0.8,
) -> Duplicates:
    facts = np.zeros(len(texts), FACTS)
    facts["text"] = [
        np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.uint64) for text in texts
    ]
    names = ids or [str(i) for i in range(len(texts))]
    facts["id"] = [np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), np.uint64) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "signatures"
    minhash.signatures(texts).tofile(path)
    half = len(texts) // 2
    inputs = NearInputs(path, lambda numbers: iter([(numbers, [texts[i] for i in numbers])]), min_similarity, minhash)
    return find_duplicates([facts[:half], facts[half:]], len(texts), folder, exact=exact, near=inputs if near else None)


def test_planted_duplicates_are_found_and_the_first_stays(tmp_path: Path) -> None:
    generator = random.Random(2)
    originals = [words(200, generator) for _ in range(300)]
    copies = [
        edited(text, changes, generator) for text, changes in zip(originals[:100], [0, 1, 2, 3] * 25, strict=True)
    ]
    others = [edited(text, 60, generator) for text in originals[100:150]]  # far below the threshold
    texts = [" ".join(text) for text in (*originals, *copies, *others)]
    found = search(texts, tmp_path)
    assert (found.fate[:300] == KEPT).all()
    assert [int(fate) for fate in found.fate[300:400]] == [EXACT, NEAR, NEAR, NEAR] * 25
    assert found.twin[300:400].tolist() == list(range(100))
    assert (found.fate[400:] == KEPT).all()


def test_a_chain_of_edits_is_one_cluster_with_its_first_kept(tmp_path: Path) -> None:
    generator = random.Random(3)
    chain = [words(200, generator)]
    for _ in range(40):
        chain.append(edited(chain[-1], 1, generator))
    order = [*range(1, 41), 0]
    found = search([" ".join(chain[i]) for i in order], tmp_path)
    assert found.fate.tolist() == [KEPT] + [NEAR] * 40
    assert set(found.cluster.tolist()) == {0}


@pytest.mark.parametrize("per_file", [7, 64])
def test_spreading_over_files_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_file: int) -> None:
    generator = random.Random(4)
    texts = [" ".join(words(50, generator)) for _ in range(100)]
    texts += [" ".join(edited(text.split(), 1, generator)) for text in texts[:30]] + texts[30:60]
    whole = search(texts, tmp_path / "a")
    monkeypatch.setattr(partitions, "RECORDS_PER_FILE", per_file)
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 400)
    monkeypatch.setattr(near, "PAIRS_AT_ONCE", 5)
    monkeypatch.setattr(near, "SET_BYTES_AT_ONCE", 1000)
    monkeypatch.setattr(near, "PROPOSED_PER_FILE", 9)
    spread = search(texts, tmp_path / "b")
    assert (whole.fate == spread.fate).all()
    assert (whole.cluster == spread.cluster).all()
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"signatures", "compared"}
    assert (tmp_path / "a" / "compared").read_bytes() == (tmp_path / "b" / "compared").read_bytes()


def test_rules_that_are_off_remove_nothing(tmp_path: Path) -> None:
    texts = ["the same text"] * 3 + ["another text"]
    assert search(texts, tmp_path / "a", exact=False, near=False).fate.tolist() == [KEPT] * 4
    assert search(texts, tmp_path / "b", exact=True, near=False).fate.tolist() == [KEPT, EXACT, EXACT, KEPT]
    assert (
        search(["", "...", ""], tmp_path / "c", exact=False).fate.tolist() == [KEPT] * 3
    )  # no words, nothing to be similar by


def test_a_second_document_of_the_same_id_is_told(tmp_path: Path) -> None:
    found = search(["one text", "two texts", "three"], tmp_path, ids=["a", "b", "a"])
    assert found.fate.tolist() == [KEPT, KEPT, SAME_ID]


def test_evaluation_text_is_found_whatever_its_case_and_marks() -> None:
    example = "A man is sitting on a roof. He starts pulling up roofing again today."
    judge = Decontaminator([example], 13)
    hits = judge.hits(
        [
            "Intro: a MAN is sitting -- on a roof, he starts pulling up roofing again and goes",
            "A man is sitting on a roof.",
            "日本語 text",
            "",
        ]
    )
    assert hits.tolist() == [True, False, False, False]


def test_examples_come_from_lines_and_from_every_string_of_json() -> None:
    lines = ["plain line\n", "\n", '{"ctx": "one", "n": 3, "endings": ["two", {"deep": "three"}]}\n']
    assert list(examples_in(lines)) == ["plain line\n", "one", "two", "three"]


def test_a_signature_is_108_minima() -> None:
    assert (MINHASH.signatures(["a b"]).shape[1], permutations(108)[0].tolist()[0] % 2) == (108, 1)


def test_sets_of_shingles_have_the_exact_similarity() -> None:
    generator = random.Random(5)
    for changes in (0, 1, 7, 40, 150):
        a = words(200, generator)
        one, other = " ".join(a), " ".join(edited(a, changes, generator)) + " naïve Straße 日本語"
        assert MINHASH.similarity(one, other) == pytest.approx(jaccard(shingles(one), shingles(other)))
    assert [len(found) for found in MINHASH.shingle_sets(["", "...", "two words", "a b c d e", "a a a a a a a"])] == [
        0,
        0,
        1,
        1,
        1,
    ]
    assert MINHASH.similarity("", "") == 0.0


def test_only_pairs_of_the_wanted_similarity_are_joined(tmp_path: Path) -> None:
    generator = random.Random(6)
    originals = [words(200, generator) for _ in range(200)]
    copies = [edited(text, changes % 12, generator) for changes, text in enumerate(originals)]
    texts = [" ".join(text) for text in (*originals, *copies)]
    found = search(texts, tmp_path)
    wanted = [jaccard(shingles(texts[i]), shingles(texts[200 + i])) >= 0.8 for i in range(200)]
    assert 0 < sum(wanted) < 200
    assert (found.fate[200:] != KEPT).tolist() == wanted


def test_documents_that_only_others_connect_with_the_kept_one_are_counted(tmp_path: Path) -> None:
    generator = random.Random(3)
    chain = [words(200, generator)]
    for _ in range(40):
        chain.append(edited(chain[-1], 1, generator))
    texts = [" ".join(text) for text in chain]
    found = search(texts, tmp_path)
    assert found.twin.tolist() == [-1] + [0] * 40
    assert found.beyond == sum(jaccard(shingles(texts[0]), shingles(text)) < 0.8 for text in texts[1:]) > 0


def test_a_bucket_of_many_equal_signatures_is_searched_in_linear_time(tmp_path: Path) -> None:
    """Each document is compared with at most 31 or 16 others, so a hundred times as many take a hundred times as long."""
    count = 5000
    hashes, documents = np.zeros(count, np.uint64), np.arange(count)
    none = np.zeros(count, np.bool_)
    pairs = np.empty((count * 32, 2), np.int64)
    found, at = near._candidates(hashes, documents, (none, True), pairs, (0, 0, 0))
    first = near.ALL_PAIRS
    assert found == first * (first - 1) // 2 + (count - first) * 2 * near.NEIGHBOURS and at[0] == count


def all_similar(texts: list[str], words: int, least: float) -> dict[tuple[int, int], float]:
    sets = [shingles(text, words) for text in texts]
    found = {(i, j): jaccard(sets[i], sets[j]) for j in range(len(texts)) for i in range(j)}
    return {pair: value for pair, value in found.items() if value >= least}


@pytest.mark.parametrize(
    ("minhash", "words_of_shingle"),
    [(MINHASH, 5), (MinHash(bands=40, rows=3, shingle_words=2, hashes=160), 2)],
)
def test_every_similar_pair_is_listed_once_with_its_exact_similarity(
    tmp_path: Path, minhash: MinHash, words_of_shingle: int
) -> None:
    generator = random.Random(8)
    originals = [words(60, generator) for _ in range(40)]
    family = [
        edited(originals[0], 1, generator) for _ in range(6)
    ]  # all pairs of a cluster, not only those that join it
    texts = [
        " ".join(text) for text in (*originals, *family, *(edited(text, 1, generator) for text in originals[1:20]))
    ]
    found = search(texts, tmp_path, minhash=minhash)
    assert found.compared is not None
    pairs = np.fromfile(found.compared, COMPARED)
    assert pairs.tolist() == sorted(set(pairs.tolist()), key=lambda row: (row[1], row[0]))
    listed = {(int(a), int(b)): similarity for a, b, similarity in pairs if similarity >= 0.8}
    expected = all_similar(texts, words_of_shingle, 0.8)
    assert listed == pytest.approx(expected)
    assert len(expected) > 20
    near_ones = np.flatnonzero(found.fate == NEAR)
    to_kept = [
        jaccard(shingles(texts[i], words_of_shingle), shingles(texts[found.twin[i]], words_of_shingle))
        for i in near_ones
    ]
    assert found.similarity.tolist() == pytest.approx(to_kept)


def test_more_minima_leave_fewer_pairs_to_compare_exactly() -> None:
    assert least_equal(0.8, 108) / 108 < least_equal(0.8, 432) / 432 < 0.8
