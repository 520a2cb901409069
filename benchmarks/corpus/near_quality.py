"""Quality of near-duplicates: recall and precision at Jaccard 0.8 for eight ways to edit a text, on several corpora.

    python benchmarks/corpus/near_quality.py [NAME=FILE.jsonl ...] | tee benchmarks/corpus/near_quality.log

Without files, two corpora of this machine: docstrings of installed Python packages, and English manual pages. No setting
was chosen on either.

For each corpus and edit model, copies of a sample are edited by 0 to 10% and hidden among the originals. Truth is the
exact Jaccard similarity of sets of 5-word tuples, in plain Python, over all pairs that share a tuple: an inverted index
finds them, without MinHash. A pair counts as found if both are in one cluster; a removed document is right if some
other document is at least 0.8 like it, and it is beyond the threshold if the kept one is less like it.
`near_quality` computes both for the clusters of any engine.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import hashlib
import json
import platform
import random
import re
import sys
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.corpus

from tests.corpus.reference import jaccard, shingles

from skytrain.config import compose
from skytrain.corpus.dedup import EXACT, FACTS, KEPT, Duplicates, find_duplicates
from skytrain.corpus.minhash import MinHash
from skytrain.corpus.near import NearInputs

SAMPLE = 3000
PLANTED = 1500
SHORTEST_WORDS = 60
MOST_FILES = 6000
LIMIT = 0.8
FREQUENT = 30  # documents that share a tuple, beyond which it is boilerplate and proposes no pair

Edit = Callable[[list[str], float, random.Random], str]


def substitution(words: list[str], share: float, generator: random.Random) -> str:
    chosen = set(generator.sample(range(len(words)), round(share * len(words))))
    return " ".join(f"edit{generator.randrange(10**6)}" if i in chosen else word for i, word in enumerate(words))


def deletion(words: list[str], share: float, generator: random.Random) -> str:
    chosen = set(generator.sample(range(len(words)), round(share * len(words))))
    return " ".join(word for i, word in enumerate(words) if i not in chosen)


def insertion(words: list[str], share: float, generator: random.Random) -> str:
    chosen = set(generator.sample(range(len(words)), round(share * len(words))))
    return " ".join(f"{word} new{generator.randrange(10**6)}" if i in chosen else word for i, word in enumerate(words))


def sentence_shuffle(words: list[str], share: float, generator: random.Random) -> str:
    sentences = re.split(r"(?<=[.!?]) ", " ".join(words))
    chosen = generator.sample(range(len(sentences)), round(share * len(sentences)))
    moved = dict(zip(chosen, generator.sample(chosen, len(chosen)), strict=True))
    return " ".join(sentences[moved.get(i, i)] for i in range(len(sentences)))


def truncation(words: list[str], share: float, generator: random.Random) -> str:
    return " ".join(words[: len(words) - round(share * len(words))])


def case(words: list[str], share: float, generator: random.Random) -> str:
    return " ".join(word.upper() if generator.random() < share else word for word in words)


def whitespace(words: list[str], share: float, generator: random.Random) -> str:
    return "".join(word + ("\n\n\t " if generator.random() < share else " ") for word in words)


def mixed(words: list[str], share: float, generator: random.Random) -> str:
    for edit in (substitution, deletion, insertion, sentence_shuffle, case):
        words = edit(words, share / 4, generator).split()
    return " ".join(words)


EDITS: tuple[Edit, ...] = (
    substitution, deletion, insertion, sentence_shuffle, truncation, case, whitespace, mixed,
)  # fmt: skip


def docstrings() -> list[str]:
    found = []
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))[:MOST_FILES]:
        with contextlib.suppress(SyntaxError, ValueError):
            nodes = ast.walk(ast.parse(path.read_text()))
            documented = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
            found += [text for node in documented if (text := ast.get_docstring(node))]
    return found


def manual_pages() -> list[str]:
    found = []
    for path in sorted(Path("/usr/share/man").glob("man*/*.gz"))[:MOST_FILES]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = gzip.decompress(path.read_bytes()).decode().splitlines()
            prose = " ".join(line for line in lines if line[:1] not in (".", "'"))
            found.append(re.sub(r"\\(f[A-Z]|[-&e])", "", prose))
    return found


def read(path: Path) -> list[str]:
    with path.open() as lines:
        return [json.loads(line)["text"] for line in lines]


def main(files: dict[str, Path]) -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    given = {name: read(path) for name, path in files.items()}
    for name, everything in (given or {"docstrings": docstrings(), "manual pages": manual_pages()}).items():
        # Equal texts are no near-duplicates, and the shortest have no pair near the limit.
        texts = [text for text in dict.fromkeys(everything) if len(text.split()) >= SHORTEST_WORDS]
        print(f"{name}: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} million characters")
        for number, edit in enumerate(EDITS):
            measure(texts, edit, random.Random(number))


def measure(texts: list[str], edit: Edit, generator: random.Random) -> None:
    sample = generator.sample(texts, min(SAMPLE, len(texts)))
    chosen = generator.sample(sample, min(PLANTED, len(sample)))
    everything = sample + [edit(text.split(), generator.uniform(0, 0.1), generator) for text in chosen]
    generator.shuffle(everything)
    found = search(everything)
    # Equal texts are set aside before clusters are made; they count with the document they equal.
    cluster = found.cluster[np.where(found.fate == EXACT, found.twin, np.arange(len(everything)))]
    quality = near_quality(everything, cluster, np.flatnonzero(found.fate != KEPT))
    print(
        f"  {edit.__name__:<17} recall {quality.recall:.4f} of {quality.pairs} pairs, precision {quality.precision:.4f} "
        f"of {quality.removed} removed, {found.beyond} of them beyond the threshold from the kept one",
        flush=True,
    )


class NearQuality(NamedTuple):
    recall: float  # of the pairs that are at least `limit` alike, those in one cluster
    precision: float  # of the removed documents, those with another one that is at least `limit` like them
    pairs: int
    removed: int


def near_quality(
    texts: list[str], cluster: Sequence[int] | np.ndarray, removed: Sequence[int] | np.ndarray, limit: float = LIMIT
) -> NearQuality:
    """Compare any engine's clusters (a label for each text) and removed texts (their numbers) with exact Jaccard."""
    sets = [shingles(text) for text in texts]
    exact = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in sharing_pairs(sets)}
    truth = [pair for pair, value in exact.items() if value >= limit]
    best: dict[int, float] = defaultdict(float)
    for (a, b), value in exact.items():
        best[a], best[b] = max(best[a], value), max(best[b], value)
    together = sum(cluster[a] == cluster[b] for a, b in truth)
    right = sum(best[int(i)] >= limit for i in removed)
    return NearQuality(float(together / max(1, len(truth))), right / max(1, len(removed)), len(truth), len(removed))


def sharing_pairs(sets: list[set[tuple[str, ...]]]) -> set[tuple[int, int]]:
    """Pairs that could reach the limit: they share at least one tuple that is not boilerplate."""
    index: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, found in enumerate(sets):
        for one in found:
            index[one].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for members in index.values():
        if 1 < len(members) <= FREQUENT:
            shared.update((a, b) for i, a in enumerate(members) for b in members[i + 1 :])
    return set(shared)


def search(texts: list[str]) -> Duplicates:
    facts = np.zeros(len(texts), FACTS)
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    facts["text"] = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
    facts["id"][:, 0] = np.arange(len(texts))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "signatures"
        minhash = MinHash.of(compose().config.data.near_dedup)
        minhash.signatures(texts).tofile(path)
        near = NearInputs(path, lambda numbers: iter([(numbers, [texts[i] for i in numbers])]), LIMIT, minhash)
        return find_duplicates([facts], len(texts), Path(scratch), exact=True, near=near)


if __name__ == "__main__":
    main({name: Path(path) for name, path in (word.split("=") for word in sys.argv[1:])})
