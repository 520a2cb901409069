"""Finds prepared data, on machines that may not have its sources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import BPETokenizerConfig, DataConfig, HFTokenizerConfig, SkytrainError, TokenizerConfig
from ..corpus import choose_version, corpus_folder, recipe_hash
from ..storage import NotFound, Store, read_text
from .manifest import Manifest, find_manifest

if TYPE_CHECKING:
    from .tokenizers import Tokenizer


@dataclass(frozen=True)
class Prepared:
    """A data set's splits in the store, and the tokenizer that made them."""

    folder: str  # tokens/<dataset>/<version>/<tokenizer>
    tokenizer_id: str
    train: Manifest
    validation: Manifest | None

    def prefix(self, split: str) -> str:
        return f"{self.folder}/{split}"


def data_hashes(sources: Iterable[Prepared]) -> dict[str, str]:
    """Return the hash of each split's manifest, which contains the hash of every shard."""
    return {
        each.prefix(manifest.split): hashlib.sha256(manifest.to_bytes()).hexdigest()
        for each in sources
        for manifest in (each.train, each.validation)
        if manifest
    }


def tokens_folder(dataset: str, version: str, tokenizer_id: str) -> str:
    return f"tokens/{dataset}/{version}/{tokenizer_id}"


def open_prepared(store: Store, folder: str) -> Prepared | None:
    """Open the prepared data in a folder; None until its training split, which is written last, is finished."""
    train = find_manifest(store, f"{folder}/train")
    if train is None:
        return None
    return Prepared(folder, folder.rpartition("/")[2], train, find_manifest(store, f"{folder}/validation"))


def find_prepared(store: Store, data: DataConfig, tokenizer: TokenizerConfig) -> Prepared:
    """Find the prepared data for these settings; of several versions, the one that matches the current sources."""
    versions = _find_versions(store, data, lambda prepared: _made_by(prepared, tokenizer))
    if not versions:
        raise _none_prepared(store, data, f"tokenizer={tokenizer.name}", "with the same KEY=VALUEs")
    version = choose_version(data, list(versions), store.url(f"tokens/{data.name}"))
    return _choose_tokenizer(store, data.name, version, tokenizer, versions[version])


def find_prepared_for(store: Store, data: DataConfig, tokenizer: Tokenizer, model: str) -> Prepared:
    """Find the prepared data for the tokenizer of `model`, a folder or a name on the hub, by its hash."""
    versions = _find_versions(store, data, lambda prepared: prepared.train.tokenizer.hash == tokenizer.hash)
    if not versions:
        how = f"with the same KEY=VALUEs and tokenizer=hf tokenizer.name={model}"
        raise _none_prepared(store, data, f"the tokenizer of {model}", how)
    return versions[choose_version(data, list(versions), store.url(f"tokens/{data.name}"))][0]


def _find_versions(store: Store, data: DataConfig, fits: Callable[[Prepared], bool]) -> dict[str, list[Prepared]]:
    """Return the data that was prepared with these settings, by version."""
    recipe = recipe_hash(data)
    top = f"tokens/{data.name}"
    versions: dict[str, list[Prepared]] = {}
    for version in store.folders(f"{top}/"):
        if data.version and version != data.version:
            continue
        for tokenizer_id in store.folders(f"{top}/{version}/"):
            prepared = open_prepared(store, tokens_folder(data.name, version, tokenizer_id))
            if prepared and prepared.train.made_from["recipe"] == recipe and fits(prepared):
                versions.setdefault(version, []).append(prepared)
    return versions


class NotPrepared(SkytrainError):
    """Data of these settings that is not in the store."""


def _none_prepared(store: Store, data: DataConfig, tokenizer: str, how: str) -> NotPrepared:
    wanted = f" in version {data.version}" if data.version else ""
    return NotPrepared(
        f"{store.url(f'tokens/{data.name}')} holds no tokens of data={data.name} made with {tokenizer} and these settings{wanted}\n"
        f"  run `skytrain prepare` {how} first"
    )


def _choose_tokenizer(
    store: Store, dataset: str, version: str, settings: TokenizerConfig, candidates: list[Prepared]
) -> Prepared:
    """Choose by tokenizer: those of the same name and size differ if trained on samples of different sizes."""
    if len(candidates) == 1:
        return candidates[0]
    if isinstance(settings, HFTokenizerConfig):  # all of them have the same files
        return next((prepared for prepared in candidates if prepared.tokenizer_id == settings.id), candidates[0])
    wanted = trained_tokenizer_id(store, dataset, version, settings)
    for prepared in candidates:
        if prepared.tokenizer_id == wanted:
            return prepared
    ids = ", ".join(prepared.tokenizer_id for prepared in candidates)
    raise SkytrainError(
        f"{store.url(f'tokens/{dataset}/{version}')} holds tokens of several tokenizers {settings.name!r}: {ids}\n"
        "  set tokenizer.sample_bytes to what the wanted one was trained on"
    )


def missing_files(store: Store, prepared: Prepared) -> list[str]:
    """Return the keys of files that the manifests name, and that the store lacks or has with another size."""
    missing = []
    for manifest in (prepared.train, prepared.validation):
        if manifest is None:
            continue
        prefix = prepared.prefix(manifest.split)
        sizes = {stat.key: stat.size for stat in store.list(prefix)}
        for shard in manifest.shards:
            files = {"bin": shard.bytes, "idx": None, **({"mask": shard.mask_bytes} if shard.mask_sha256 else {})}
            for ending, size in files.items():
                key = f"{prefix}/{shard.name}.{ending}"
                if key not in sizes or (size is not None and sizes[key] != size):
                    missing.append(key)
    return missing


def trained_tokenizer_key(dataset: str, version: str, settings: BPETokenizerConfig) -> str:
    """Return the key of the id of the tokenizer trained on this corpus with these settings."""
    name = f"tokenizer-{settings.name}-{settings.vocab_size}-{settings.sample_bytes}"
    return f"{corpus_folder(dataset, version)}/{name}"


def trained_tokenizer_id(store: Store, dataset: str, version: str, settings: TokenizerConfig) -> str | None:
    """Return the id of the tokenizer trained on a corpus with these settings, or None."""
    if not isinstance(settings, BPETokenizerConfig):
        return None
    try:
        return read_text(store, trained_tokenizer_key(dataset, version, settings))
    except NotFound:
        return None


def find_mixture(store: Store, names: Sequence[str], tokenizer_id: str) -> dict[str, Prepared]:
    """Find the data sets of a mixture, each `dataset` or `dataset@version`, all made with the same tokenizer."""
    data_sets = {}
    for name in names:
        dataset, _, version = name.partition("@")
        versions = [version] if version else store.folders(f"tokens/{dataset}")
        folders = [tokens_folder(dataset, each, tokenizer_id) for each in versions]
        known = [prepared for folder in folders if (prepared := open_prepared(store, folder))]
        if not known:
            raise SkytrainError(
                f"loader.mixture: {store.url(f'tokens/{dataset}')} holds no data set {name!r} made with tokenizer {tokenizer_id}\n"
                f"  run `skytrain prepare data={dataset}` with the same tokenizer first"
            )
        if len(known) > 1:
            choices = ", ".join(f"{dataset}@{prepared.folder.split('/')[2]}" for prepared in known)
            raise SkytrainError(
                f"loader.mixture: there are several preparations of {name!r}\n  choose one of {choices}"
            )
        data_sets[name] = known[0]
    return data_sets


def _made_by(prepared: Prepared, tokenizer: TokenizerConfig) -> bool:
    facts = prepared.train.tokenizer
    if isinstance(tokenizer, HFTokenizerConfig):  # the same files may have been found under another name
        return prepared.tokenizer_id.rpartition("-")[2] == tokenizer.id.rpartition("-")[2]
    return facts.name == tokenizer.name and facts.vocab_size == tokenizer.vocab_size
