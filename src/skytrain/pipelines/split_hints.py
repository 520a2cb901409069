"""What to do where a split of prepared data is empty, for `prepare` to print."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..config import DataConfig, plural
from ..tokens import dividing_fraction

SHARE = 0.1  # of the documents that a suggested fraction puts into validation
READ_MOST = 1000  # documents: a fraction that divides the first of them divides them all


def no_validation(data: DataConfig, source: Any, documents: int, document_ids: Iterable[str]) -> str:
    """Why there is no validation split, and what gives one."""
    if not data.validation_fraction:
        return "no validation split: data.validation_fraction=0"
    return (
        f"no validation split: by chance, none of {plural(documents, 'document')} is in it at "
        f"data.validation_fraction={data.validation_fraction:g}\n  {_remedy(source, document_ids)}"
    )


def no_training(data: DataConfig, source: Any, document_ids: Iterable[str]) -> str:
    """Why the training split is empty, and what fills it."""
    return (
        f"data={data.name}: the training split is empty: data.validation_fraction={data.validation_fraction:g} "
        f"took every document\n  {_remedy(source, document_ids)}"
    )


def _remedy(source: Any, document_ids: Iterable[str]) -> str:
    fraction = dividing_fraction(islice(document_ids, READ_MOST), SHARE)
    if fraction is not None:
        return f"more documents give both splits, and so does data.validation_fraction={fraction:g}"
    by_separator = (
        ", or name the line that ends a document, such as data.source.separator='<|endoftext|>'"
        if getattr(source, "separator", "") is None
        else ""
    )
    return (
        f"a single document cannot be divided: give more documents{by_separator}; "
        "data.validation_fraction=0 puts everything into training"
    )
