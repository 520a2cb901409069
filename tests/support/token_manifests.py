"""Tokens that nobody reads: what a launch looks for before it rents machines."""

from __future__ import annotations

from skytrain.config import Config
from skytrain.corpus import recipe_hash
from skytrain.storage import Store
from skytrain.tokens import Manifest, Shard, tokens_folder
from skytrain.tokens.manifest import TokenizerFacts


def store_manifests(store: Store, config: Config) -> None:
    """Let the store look as if the data of a configuration had been prepared."""
    tokenizer = config.tokenizer
    facts = TokenizerFacts(tokenizer.name, "0" * 64, tokenizer.vocab_size, 0)
    folder = tokens_folder(config.data.name, "0123456789ab", getattr(tokenizer, "id", tokenizer.name))
    shard = Shard(name="00000", tokens=1000, documents=10, bytes=3024, sha256="0" * 64, index_sha256="0" * 64)
    for split in ("validation", "train"):
        manifest = Manifest(
            split=split,
            dtype="uint16",
            tokenizer=facts,
            tokens=1000,
            documents=10,
            text_bytes=4000,
            shards=(shard,),
            made_from={"recipe": recipe_hash(config.data)},
        )
        store.write(f"{folder}/{split}/{shard.name}.bin", bytes(shard.bytes))
        store.write(f"{folder}/{split}/{shard.name}.idx", bytes(8 * shard.documents))
        store.write(f"{folder}/{split}/manifest.json", manifest.to_bytes())
    if tokenizer.kind != "gpt2":
        store.write(f"tokenizers/{folder.rpartition('/')[2]}/tokenizer.json", b"{}")
