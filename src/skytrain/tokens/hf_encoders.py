"""Chooses the engine of a Hugging Face tokenizer: fastokens where it gives the ids of `tokenizers`, else that.

`AutoTokenizer` is a thin layer over `tokenizers`, which is therefore the reference.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .definitions import METASPACE, begins_with_space, piece_texts, plain_definition, without_metaspace
from .encoders import TRICKY, Encode, fastokens_encoder, tokenizers_encoder

MOST_SPECIAL = 64  # special tokens whose spelling is tried: some tokenizers reserve hundreds
MOST_TRAPS = 1024  # pieces that an engine may get wrong; with more it is not used


def hf_encoder(definition: Mapping[str, Any], *, text_may_be_special: bool) -> Encode:
    """Return the fastest engine that agrees with `tokenizers` on the tricky texts and on every piece.

    The spelling of special tokens is among these texts. A fallback warns once.
    """
    wanted = definition if text_may_be_special else plain_definition(definition)
    reference = reference_encoder(definition, text_may_be_special=text_may_be_special)
    added = [token["content"] for token in definition["added_tokens"]][:MOST_SPECIAL]
    sample = [*TRICKY, *added, *(f"{token} a{token}b  {token}\n{token}" for token in added)]
    fast, problem = _try(_fast_encoder, wanted, sample, reference(sample))
    if fast is not None:
        traps = _traps(fast, reference, piece_texts(wanted))
        if len(traps) <= MOST_TRAPS:
            return _around(traps, fast, reference) if traps else fast
        problem = f"other ids for {len(traps)} pieces, such as {traps[0]!r}"
    warnings.warn(f"fastokens does not serve this tokenizer ({problem}): using tokenizers, slower", stacklevel=2)
    return reference


def reference_encoder(definition: Mapping[str, Any], *, text_may_be_special: bool) -> Encode:
    """Return the encoder of `tokenizers`. It starts at once, where `hf_encoder` compares engines first."""
    own = tokenizers_encoder(json.dumps(definition, ensure_ascii=False), plain=not text_may_be_special)
    if text_may_be_special:
        return own
    # Its own switch lets text become a special token where the model's vocabulary has its spelling.
    special = {token["content"]: token["id"] for token in definition["added_tokens"] if token["special"]}
    sample = [*TRICKY, *special]
    expected = own(sample)
    ids_of_special = np.array([*special.values()], np.uint32)
    # A tricky text may have unknown characters, and so the unknown token, which is special as well.
    kept = [i for i, ids in enumerate(expected) if i < len(TRICKY) or not np.isin(ids, ids_of_special).any()]
    hidden, problem = _try(
        lambda each: tokenizers_encoder(json.dumps(each, ensure_ascii=False)),
        plain_definition(definition),
        [sample[i] for i in kept],
        [expected[i] for i in kept],
    )
    if hidden is None:
        warnings.warn(f"the spelling of special tokens cannot be hidden from this tokenizer: {problem}", stacklevel=2)
    return hidden or own


def _try(
    make: Callable[[Mapping[str, Any]], Encode],
    definition: Mapping[str, Any],
    sample: list[str],
    expected: list[np.ndarray],
) -> tuple[Encode | None, str]:
    """Return the engine if it gives the expected ids, else None and the reason."""
    try:
        encode = make(definition)
        encoded = encode(sample)
    except ImportError:
        return None, "it is not installed: pip install 'skytrain[data]'"
    except Exception as error:  # an engine's own, for a kind of tokenizer that it does not have
        return None, str(error)
    wrong = [text for text, a, b in zip(sample, expected, encoded, strict=True) if not np.array_equal(a, b)]
    return (None, f"other ids for {wrong[0]!r}") if wrong else (encode, "")


def _fast_encoder(definition: Mapping[str, Any]) -> Encode:
    rewritten = without_metaspace(definition)
    encode = fastokens_encoder(json.dumps(rewritten or definition, ensure_ascii=False))
    if rewritten is None or not begins_with_space(definition):
        return encode
    spaces = (" ", METASPACE)
    return lambda texts: encode([text if not text or text.startswith(spaces) else f" {text}" for text in texts])


def _traps(fast: Encode, reference: Encode, pieces: list[str]) -> list[str]:
    """Return the pieces that fastokens gives other ids: it looks up whole words, even where no merges lead to one."""
    differing: set[str] = set()
    for texts in (pieces, [f" {piece}" for piece in pieces]):
        answers = zip(pieces, fast(texts), reference(texts), strict=True)
        differing.update(piece for piece, ours, theirs in answers if not np.array_equal(ours, theirs))
    return sorted(differing)


def _around(traps: list[str], fast: Encode, reference: Encode) -> Encode:
    """Return an encoder that gives texts with a trap to the reference."""
    trap = re.compile("|".join(map(re.escape, traps)))

    def encode(texts: list[str]) -> list[np.ndarray]:
        slow = [i for i, text in enumerate(texts) if trap.search(text)]
        if not slow:
            return fast(texts)
        others = list(texts)
        for i in slow:
            others[i] = ""
        encoded = fast(others)
        for i, ids in zip(slow, reference([texts[i] for i in slow]), strict=True):
            encoded[i] = ids
        return encoded

    return encode
