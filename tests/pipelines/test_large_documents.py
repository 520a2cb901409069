"""Documents longer than what is tokenized at once: none is lost, and memory stays bounded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from skytrain.config import compose
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from skytrain.tokens import tokenizing

SLICE_CHARS = 100
SIZES = {
    "the last document fills the slice": [30, 40, 30],
    "the last document passes the slice": [30, 30, 130],
    "every document passes the slice": [110, 120, 130, 140],
    "one long document": [500],
    "a long document first": [500, 10],
    "a long document in the middle": [10, 500, 10],
    "short documents": [10, 20, 30],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_documents_of_any_size_at_any_position_are_tokenized(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizing, "SLICE_CHARS", SLICE_CHARS)
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} ".ljust(size, "x")}) + "\n" for i, size in enumerate(sizes)))
    settings = ["data=jsonl", f"data.source.paths={path}", "tokenizer=gpt2", f"store.root={tmp_path / 'store'}"]
    prepared = prepare(compose([*settings, "data.workers=1", "data.validation_fraction=0"]).config, Silent())
    assert prepared.train.documents == len(sizes)
    assert prepared.train.text_bytes == sum(sizes)


ENDLESS = {"ascii": (" ", "end"), "one emoji": (" ", "😀"), "one word": ("", "end")}  # separator and ending of the line
MEASURED = """
import resource, sys
from skytrain.config.composition import compose
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
prepare(compose(sys.argv[1:]).config, Silent())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["gpt2", "bpe-4k"])
@pytest.mark.parametrize(("separator", "ending"), ENDLESS.values(), ids=ENDLESS)
def test_a_line_of_52_megabytes_is_prepared_in_less_than_a_gigabyte(
    tokenizer: str, separator: str, ending: str, tmp_path: Path
) -> None:
    numbers = random.Random(0)
    words = ["".join(numbers.choices("abcdefghijklmnop", k=numbers.randint(1, 10))) for _ in range(20_000)]
    path = tmp_path / "line.txt"
    path.write_text(separator.join(numbers.choices(words, k=10_000_000))[:52_000_000] + ending)
    settings = ["data=text", f"data.source.paths={path}", f"tokenizer={tokenizer}", "data.validation_fraction=0"]
    command = [sys.executable, "-c", MEASURED, *settings, f"store.root={tmp_path / 'store'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1e9
