"""What datatrove's filters decide about each document; run by fidelity.py with the peers' Python.

    peer_rules.py INPUT.jsonl plain|datatrove|spacy

Words are split at white space (plain), by datatrove's tokenizer for languages without one of their own (datatrove)
or by spaCy's English one (spacy). Prints a JSON line per document: for each rule the reason for which it is removed,
or null, and the text that C4's rules leave.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
source, splitting = sys.argv[1:3]

from datatrove.data import Document  # noqa: E402
from datatrove.pipeline.filters import (  # noqa: E402
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.word_tokenizers import WhitespaceTokenizer  # noqa: E402


class PlainSplitting(WhitespaceTokenizer):
    def word_tokenize(self, text):
        return text.split()


language = {"plain": PlainSplitting, "datatrove": WhitespaceTokenizer, "spacy": lambda: "eng"}[splitting]()
marks = (".", "'", '"', "!", "?")  # FineWeb's own, before datatrove took those of all scripts and no quotes
c4 = C4QualityFilter(filter_no_terminal_punct=False, language=language)
rules = {
    "gopher_repetition": GopherRepetitionFilter(language=language),
    "gopher_quality": GopherQualityFilter(language=language),
    "c4": c4,
    "c4_terminal": C4QualityFilter(language=language),
    "fineweb": FineWebQualityFilter(stop_chars=marks, language=language),
    "fineweb_all_scripts": FineWebQualityFilter(language=language),
}
chain = ("gopher_repetition", "gopher_quality", "c4", "fineweb")


def judge(rule: str, document: Document) -> str | None:
    verdict = rules[rule].filter(document)
    return None if verdict is True else verdict[1]


with Path(source).open() as lines:
    for line in lines:
        text = json.loads(line)["text"]
        found = {}
        for name in rules:
            document = Document(text, "")
            found[name] = judge(name, document)
            if name in ("c4", "c4_terminal"):
                found[f"{name}_text"] = None if found[name] else document.text
        document = Document(text, "")
        found["all"] = next((f"{name}.{reason}" for name in chain if (reason := judge(name, document))), None)
        print(json.dumps(found))
