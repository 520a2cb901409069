"""Loss masks: which tokens are targets, from the writer to the batch and the loss."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skytrain.config import BatchSizes, SkytrainError, compose
from skytrain.models import build_model, lm_loss
from skytrain.storage import Store
from skytrain.tokens import BatchSettings, Manifest, PackedSplit, ShardWriter, TokenDataModule, TokenSplit, check_hashes
from skytrain.tokens.cache import ShardCache
from skytrain.tokens.shards import pack_header
from tests.support.tiny import ONE_LAYER

from .conftest import PREFIX, TOKENIZER, FarFolder, documents

T = 16
EOT = TOKENIZER.eot
Masked = list[tuple[np.ndarray, np.ndarray]]


def conversations(count: int = 60) -> Masked:
    """Documents with a mask; a few hold the end-of-text token within."""
    rng = np.random.default_rng(1)
    found = []
    for ids in documents(count):
        ids[rng.random(len(ids)) < 0.05] = EOT
        found.append((ids, rng.random(len(ids)) < 0.4))
    return found


def write(store: Store, docs: Masked, shard_tokens: int = 400) -> Manifest:
    with ShardWriter(store, PREFIX, "train", TOKENIZER, shard_tokens) as writer:
        for ids, trained in docs:
            writer.add_masked(ids, trained, text_bytes=0)
        return writer.finish({"dataset": "toy"})


def test_a_mask_lies_beside_each_shard_whose_tokens_stay_as_they_are(store: Store) -> None:
    docs = conversations()
    manifest = write(store, docs)
    assert len(manifest.shards) > 2 and manifest == Manifest.from_bytes(manifest.to_bytes(), "here")
    tokens = np.concatenate([ids for ids, _ in docs]).astype("<u2")
    at = 0
    for shard in manifest.shards:
        here = tokens[at : at + shard.tokens]
        assert store.read(f"{PREFIX}/{shard.name}.bin") == pack_header("uint16", shard.tokens) + here.tobytes()
        mask = store.read(f"{PREFIX}/{shard.name}.mask")
        assert (shard.mask_bytes, shard.mask_sha256) == (len(mask), hashlib.sha256(mask).hexdigest())
        assert len(mask) == -(-shard.tokens // 8)
        at += shard.tokens
    assert check_hashes(store, PREFIX, manifest) == []
    store.write(f"{PREFIX}/shard-00001.mask", mask)
    assert ["shard-00001.mask" in problem for problem in check_hashes(store, PREFIX, manifest)] == [True]


def test_a_shard_without_a_mask_has_the_manifest_it_always_had(store: Store) -> None:
    with ShardWriter(store, PREFIX, "train", TOKENIZER, 400) as writer:
        writer.add(np.arange(5), 5)
        assert b"mask" not in writer.finish({}).to_bytes()


@pytest.mark.parametrize("far", [False, True], ids=["folder", "copied"])
def test_targets_are_the_masked_tokens_and_each_exactly_once(store: Store, tmp_path: Path, far: bool) -> None:
    docs = conversations()
    write(store, docs)
    if far:
        store = FarFolder(tmp_path / "store")
    split = PackedSplit.of(TokenSplit.open(store, PREFIX, cache=ShardCache(tmp_path / "cache")))
    split = pickle.loads(pickle.dumps(split))  # as a data loader worker has it
    batch = split.batch(np.arange(split.windows(T)), T)
    inputs, targets = batch.tokens, batch.targets
    expected = sorted(token for ids, trained in docs for token in ids[1:][trained[1:]].tolist())
    assert sorted(targets[targets >= 0].tolist()) == expected
    assert inputs.min() >= 0 and inputs.max() <= EOT
    assert split.targets(np.arange(split.windows(T)), T).tolist() == (targets >= 0).sum(1).tolist()


def test_the_targets_of_a_step_are_known_before_it_is_read(store: Store) -> None:
    write(store, conversations())
    settings = BatchSettings(sequence_length=T, micro_batch=2, batches=BatchSizes(4), total_steps=6, seed=1)
    module = TokenDataModule(PackedSplit.of(TokenSplit.open(store, PREFIX)), None, settings)
    batches = list(module.train_dataloader())
    counted = [sum(int(batch.mask.sum()) for batch in batches[at : at + 2]) for at in range(0, 12, 2)]
    assert len(set(counted)) > 1 and [module.targets_in_step(step) for step in range(6)] == counted


def test_the_loss_is_that_of_each_document_alone_over_its_masked_tokens(store: Store) -> None:
    """A token within a document that equals the one that begins others does not separate it."""
    docs = [(ids % 250, trained) for ids, trained in conversations(20) if len(ids) <= T + 1]
    for ids, _ in docs:
        ids[ids == EOT % 250] = 7
        ids[len(ids) // 2] = 256
    facts = type(TOKENIZER)(name="toy", hash="a1", vocab_size=257, eot=256)
    with ShardWriter(store, PREFIX, "train", facts, 400) as writer:
        for ids, trained in docs:
            writer.add_masked(ids, trained, text_bytes=0)
        writer.finish({"dataset": "toy"})
    split = PackedSplit.of(TokenSplit.open(store, PREFIX))
    model = build_model(compose([*ONE_LAYER, "model.max_length=32"]).config.model, seed=0)
    batch = split.batch(np.arange(split.windows(T)), T, document_starts=True)
    packed = lm_loss(model, batch.tokens, batch.targets, batch.document_starts)
    nats, targets = torch.zeros(()), 0
    for ids, trained in docs:
        tokens, wanted = torch.from_numpy(ids)[None], torch.from_numpy(trained[1:])
        if wanted.any():
            nats = nats + F.cross_entropy(model(tokens[:, :-1])[0][wanted], tokens[0, 1:][wanted], reduction="sum")
            targets += int(wanted.sum())
    torch.testing.assert_close(packed, nats / targets, atol=1e-5, rtol=1e-5)


def test_windows_across_documents_refuse_a_mask(store: Store) -> None:
    write(store, conversations())
    settings = BatchSettings(sequence_length=T, micro_batch=2, batches=BatchSizes(4), total_steps=6, seed=1)
    with pytest.raises(SkytrainError, match=r"has a loss mask.*\n.*loader\.packing=documents"):
        TokenDataModule(TokenSplit.open(store, PREFIX), None, settings)


def test_a_mask_that_was_altered_or_is_missing_is_named(store: Store) -> None:
    manifest = write(store, conversations())
    key = f"{PREFIX}/shard-00001.mask"
    store.write(key, bytes(len(store.read(key))))
    with pytest.raises(SkytrainError, match=r"shard-00001\.mask was altered"):
        PackedSplit.of(TokenSplit.open(store, PREFIX))
    store.delete(key)
    with pytest.raises(SkytrainError, match=r"shard-00001\.mask is missing"):
        PackedSplit.of(TokenSplit.open(store, PREFIX))
    assert manifest.masked
