"""datatrove's equivalent of `skytrain prepare`, in one process; run by prepare.py with the peers' Python.

    peer_datatrove.py INPUT.jsonl WORK_FOLDER TOKENIZER.json spacy|fallback|plain

The same rules with the same numbers, MinHash with 14 bands of 8, GPT-2 tokens. Words are split by spaCy's English
tokenizer, by datatrove's for languages without one of their own (spaCy's multilingual one), or at white space
(plain). Prints CPU-seconds, its own and its children's.
"""

import json
import os
import resource
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
source, work, tokenizer, splitting = sys.argv[1:5]

from datatrove.executor import LocalPipelineExecutor  # noqa: E402
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature  # noqa: E402
from datatrove.pipeline.dedup.minhash import MinhashConfig  # noqa: E402
from datatrove.pipeline.filters import (  # noqa: E402
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader  # noqa: E402
from datatrove.pipeline.tokens import DocumentTokenizer  # noqa: E402
from datatrove.pipeline.writers import JsonlWriter  # noqa: E402
from datatrove.utils.word_tokenizers import WhitespaceTokenizer  # noqa: E402


class PlainSplitting(WhitespaceTokenizer):
    def word_tokenize(self, text):
        return text.split()


language = {"spacy": lambda: "eng", "fallback": WhitespaceTokenizer, "plain": PlainSplitting}[splitting]()
config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def run(pipeline: list, tasks: int = 1) -> None:
    LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=1, logging_dir=None).run()


before = cpu_seconds()
run(
    [
        JsonlReader(str(Path(source).parent), glob_pattern=Path(source).name),
        GopherRepetitionFilter(language=language),
        GopherQualityFilter(language=language),
        C4QualityFilter(filter_no_terminal_punct=False, language=language),
        FineWebQualityFilter(language=language),
        JsonlWriter(f"{work}/clean"),
    ]
)
run([JsonlReader(f"{work}/clean"), MinhashDedupSignature(f"{work}/signatures", config=config, language=language)])
run([MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)], tasks=14)
run([MinhashDedupCluster(f"{work}/buckets", f"{work}/remove", config=config)])
run(
    [
        JsonlReader(f"{work}/clean"),
        MinhashDedupFilter(f"{work}/remove"),
        DocumentTokenizer(
            f"{work}/tokens", tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
        ),
    ]
)
print(json.dumps({"cpu_seconds": cpu_seconds() - before}))
