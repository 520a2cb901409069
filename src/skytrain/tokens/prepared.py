"""Finding what was prepared, on a machine that may not have the sources it was prepared from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skytrain.config import DataConfig, SkytrainError, TokenizerConfig
from skytrain.corpus import recipe_hash
from skytrain.storage import Store

from .manifest import Manifest, find_manifest


@dataclass(frozen=True)
class Prepared:
    """A data set's splits in the store, and the tokenizer that made them."""

    folder: str  # tokens/<dataset>/<version>/<tokenizer>
    tokenizer_id: str
    train: Manifest
    validation: Manifest | None

    def prefix(self, split: str) -> str:
        return f"{self.folder}/{split}"


def tokens_folder(dataset: str, version: str, tokenizer_id: str) -> str:
    return f"tokens/{dataset}/{version}/{tokenizer_id}"


def open_prepared(store: Store, folder: str) -> Prepared | None:
    """What is in a folder, or None until its training split is finished; that one is written last."""
    train = find_manifest(store, f"{folder}/train")
    if train is None:
        return None
    return Prepared(folder, folder.rpartition("/")[2], train, find_manifest(store, f"{folder}/validation"))


def find_prepared(store: Store, data: DataConfig, tokenizer: TokenizerConfig) -> Prepared:
    """The preparation that these settings name; several (the source changed in between) or none is an error."""
    recipe = recipe_hash(data)
    found = []
    for version in store.folders(f"tokens/{data.name}/"):
        if data.version and version != data.version:
            continue
        for tokenizer_id in store.folders(f"tokens/{data.name}/{version}/"):
            prepared = open_prepared(store, tokens_folder(data.name, version, tokenizer_id))
            if prepared and prepared.train.made_from["recipe"] == recipe and _made_by(prepared, tokenizer):
                found.append((version, prepared))
    if len(found) > 1:
        versions = ", ".join(version for version, _ in found)
        raise SkytrainError(
            f"{store.url(f'tokens/{data.name}')} holds {len(found)} preparations of these settings: {versions}\n  choose one: data.version=VERSION"
        )
    if not found:
        wanted = f" in version {data.version}" if data.version else ""
        raise SkytrainError(
            f"{store.url(f'tokens/{data.name}')} holds no tokens of data={data.name} made with tokenizer={tokenizer.name} and these settings{wanted}\n"
            "  run `skytrain prepare` with the same KEY=VALUEs first"
        )
    return found[0][1]


def find_mixture(store: Store, names: Sequence[str], tokenizer_id: str) -> dict[str, Prepared]:
    """The data sets of a mixture, each `dataset` or `dataset@version`, made with one and the same tokenizer."""
    found = {}
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
        found[name] = known[0]
    return found


def _made_by(prepared: Prepared, tokenizer: TokenizerConfig) -> bool:
    facts = prepared.train.tokenizer
    return facts.name == tokenizer.name and facts.vocab_size == tokenizer.vocab_size
