"""Inspect: statistics, samples and hash checks of prepared tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..config import Config, SkytrainError
from ..runs import Reporter
from ..storage import open_store
from ..tokens import (
    LengthStatistics,
    Manifest,
    Sample,
    check_hashes,
    document_lengths,
    find_prepared,
    length_statistics,
    open_prepared,
    open_tokenizer,
    sample_documents,
)


@dataclass(frozen=True)
class Inspection:
    url: str
    manifest: Manifest
    lengths: LengthStatistics | None  # None for an empty split
    samples: list[Sample]
    problems: list[str] | None  # None: not checked

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def inspect(
    config: Config, folder: str | None, split: str, samples: int, check: bool, reporter: Reporter
) -> Inspection:
    """`folder` names prepared tokens in the store (tokens/...); without one, those of the configuration."""
    store = open_store(config.store)
    prepared = (
        open_prepared(store, folder.strip("/")) if folder else find_prepared(store, config.data, config.tokenizer)
    )
    if prepared is None:
        raise SkytrainError(
            f"{store.url(folder or '')} has no prepared tokens: there is no train/manifest.json\n"
            "  the folder is tokens/DATASET/VERSION/TOKENIZER"
        )
    manifest = {"train": prepared.train, "validation": prepared.validation}.get(split)
    if manifest is None:
        raise SkytrainError(f"{store.url(prepared.folder)} has no {split} split")
    prefix = prepared.prefix(split)
    problems = None
    if check:
        problems = check_hashes(store, prefix, manifest, lambda done, total: reporter.progress("check", done, total))
    if problems:  # the index may be what is damaged
        return Inspection(url=store.url(prefix), manifest=manifest, lengths=None, samples=[], problems=problems)
    lengths = document_lengths(store, prefix, manifest)
    shown: list[Sample] = []
    if samples:
        tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
        if tokenizer.hash != manifest.tokenizer.hash:
            raise SkytrainError(
                f"{store.url(prefix)} was made with tokenizer {manifest.tokenizer.name}, "
                f"and these settings choose {config.tokenizer.name}\n"
                f"  add tokenizer={manifest.tokenizer.name}, or --samples 0"
            )
        shown = sample_documents(store, prefix, manifest, tokenizer, samples, config.seed)
    return Inspection(
        url=store.url(prefix),
        manifest=manifest,
        lengths=length_statistics(lengths) if len(lengths) else None,
        samples=shown,
        problems=problems,
    )
