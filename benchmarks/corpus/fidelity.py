"""Our rules beside datatrove's: on how many real documents they decide the same, and why they differ elsewhere.

    python benchmarks/corpus/fidelity.py FOLDER PEERS_PYTHON | tee benchmarks/corpus/fidelity.log

FOLDER has debian.jsonl and the packages that debian_text.py unpacked. "pages" are those of the packages as they are
(HTML as text, manual pages, plain files; code, menus and tables included), since rules differ on odd text; "prose" is
debian.jsonl. Ours and theirs get the same normalized text. A share is of the documents that both keep or both remove.
The table at the end is the one in docs/corpus.md.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from debian_text import MIN_CHARS, texts
from resiliparse.parse.lang import detect_fast

from skytrain.config import compose
from skytrain.corpus.clean import clean
from skytrain.corpus.rules.c4 import c4
from skytrain.corpus.rules.fineweb import fineweb
from skytrain.corpus.rules.gopher_quality import gopher_quality
from skytrain.corpus.rules.gopher_repetition import gopher_repetition
from skytrain.corpus.rules.normalize import normalize
from skytrain.corpus.rules.scan import scan

HERE = Path(__file__).parent
BYTES = 2_000_000  # of each
MAX_CHARS = 20_000  # more documents in as many bytes
SPLITTINGS = {"plain": "white space", "datatrove": "datatrove's fallback", "spacy": "spaCy"}
NAMES = {
    "gopher_repetition": "`gopher_repetition`",
    "gopher_quality": "`gopher_quality`",
    "c4": "`c4`",
    "c4_terminal": "`c4`, `terminal_punctuation`",
    "fineweb": "`fineweb`",
    "fineweb_all_scripts": "`fineweb`, beside datatrove's default marks",
    "all": "all four, one after another",
}
Verdicts = dict[str, list[Any]]


def pages(folder: Path) -> Iterator[str]:
    paths = sorted(path for path in (folder / "unpacked").rglob("*") if path.is_file() and not path.is_symlink())
    random.Random(0).shuffle(paths)
    for path in paths:
        for text in texts(path):
            if MIN_CHARS <= len(text) <= MAX_CHARS and detect_fast(text[:2000])[0] == "en":
                yield text


def prose(folder: Path) -> Iterator[str]:
    with (folder / "debian.jsonl").open() as lines:
        found = [text for line in lines if len(text := json.loads(line)["text"]) <= MAX_CHARS]
    random.Random(0).shuffle(found)
    yield from found


def sample(documents: Iterator[str]) -> list[str]:
    settings = compose(["data/cleaning=normalize"]).config.data.cleaning.normalize
    chosen: dict[str, None] = {}
    size = 0
    for document in documents:
        text = normalize(document, settings)
        if text not in chosen:
            chosen[text] = None
            size += len(text.encode())
        if size >= BYTES:
            break
    return list(chosen)


def ours(documents: list[str]) -> Verdicts:
    rules = compose(["data/cleaning=web"]).config.data.cleaning
    counts = scan(documents, True, rules.fineweb.short_line_chars).counts
    terminal = dataclasses.replace(rules.c4, terminal_punctuation=True)
    # Only the four rules that are compared; what else cleaning=web does, datatrove does elsewhere.
    four = [f"data.cleaning.{name}.enabled=true" for name in ("gopher_repetition", "gopher_quality", "c4", "fineweb")]
    data = compose(["data=text", "data.source.paths=none", "data.min_chars=0", *four]).config.data
    found: Verdicts = {
        "gopher_repetition": gopher_repetition(counts, rules.gopher_repetition),
        "gopher_quality": gopher_quality(counts, rules.gopher_quality),
        "fineweb": fineweb(counts, rules.fineweb),
        "all": clean(documents, [None] * len(documents), data).reasons,
    }
    found["fineweb_all_scripts"] = found["fineweb"]
    for name, settings in (("c4", rules.c4), ("c4_terminal", terminal)):
        result = c4(documents, settings)
        found[name] = result.reasons
        found[f"{name}_text"] = [
            None if reason else text for text, reason in zip(result.texts, result.reasons, strict=True)
        ]
    return found


def theirs(path: Path, python: str, splitting: str) -> Verdicts:
    command = [python, str(HERE / "peers/peer_rules.py"), str(path), splitting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: [row[name] for row in rows] for name in rows[0]}


def agreement(mine: Verdicts, peer: Verdicts, rule: str) -> float:
    return sum((a is None) == (b is None) for a, b in zip(mine[rule], peer[rule], strict=True)) / len(mine[rule])


def explain(mine: Verdicts, peer: Verdicts, rule: str) -> None:
    pairs = list(zip(mine[rule], peer[rule], strict=True))
    only_ours = Counter(a for a, b in pairs if a and not b)
    only_theirs = Counter(b for a, b in pairs if b and not a)
    removed = sum(a is not None for a, _ in pairs), sum(b is not None for _, b in pairs)
    line = (
        f"  {rule:<20} agree {agreement(mine, peer, rule):7.2%}; removed {removed[0]} by ours, {removed[1]} by theirs"
    )
    if f"{rule}_text" in mine:
        kept = [(a, b) for a, b in zip(mine[f"{rule}_text"], peer[f"{rule}_text"], strict=True) if a and b]
        line += f"; equal text left of {sum(a == b for a, b in kept)} of {len(kept)} kept by both"
    print(line)
    for who, reasons in (("ours", only_ours), ("theirs", only_theirs)):
        if reasons:
            print(f"    by {who} alone: {', '.join(f'{reason} {count}' for reason, count in reasons.most_common())}")


def compare(name: str, documents: list[str], python: str) -> tuple[Verdicts, dict[str, Verdicts]]:
    """Print where ours and theirs differ; returns the verdicts, theirs by how words are split."""
    print(f"\n{name}: {len(documents)} documents, {sum(len(text.encode()) for text in documents) / 1e6:.1f} MB")
    mine = ours(documents)
    peers: dict[str, Verdicts] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        for splitting, words in SPLITTINGS.items():
            peers[splitting] = theirs(path, python, splitting)
            print(f"words split by {words}:")
            for rule in NAMES:
                explain(mine, peers[splitting], rule)
            sys.stdout.flush()
    return mine, peers


def main(folder: Path, python: str) -> None:
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version as v; print(v('datatrove'), v('spacy'))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    print(f"Python {platform.python_version()}, datatrove {version[0]}, spaCy {version[1]}")
    found = {name: compare(name, sample(make(folder)), python) for name, make in (("pages", pages), ("prose", prose))}
    columns = [f"{name}: {each}" for name in found for each in ("removed", *SPLITTINGS.values())]
    print(f"\n| our rule | {' | '.join(columns)} |")
    print("| --- |" + " --- |" * len(columns))
    for rule, name in NAMES.items():
        cells = []
        for mine, peers in found.values():
            cells.append(f"{sum(reason is not None for reason in mine[rule]) / len(mine[rule]):.1%}")
            cells += [f"{agreement(mine, peers[splitting], rule):.2%}" for splitting in SPLITTINGS]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
