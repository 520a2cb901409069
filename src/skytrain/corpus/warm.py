"""Loads the compiled rules once, in the fork server that imports this module, so that workers need not."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet  # noqa: F401
from resiliparse.parse.lang import detect_fast  # noqa: F401

from . import chunks, dedup  # noqa: F401
from .minhash import MinHash
from .rules.lines import LineRule, join_lines
from .rules.scan import scan
from .rules.tidy import english, untidy

TEXTS = ["Two words.", "Très bien."]  # one text per character width

for group in scan(TEXTS, True, 30).groups:
    join_lines(
        group,
        np.ones(1, bool),
        LineRule(min_words=1, max_word_chars=9, terminal=False, lorem_ipsum=0, javascript=0, curly_bracket=0, policy=0),
        30,
    )
untidy(TEXTS)
english(TEXTS, 0.5)
MinHash(bands=1, rows=1, shingle_words=1, hashes=1).signatures(TEXTS)  # compiled alike for other numbers
