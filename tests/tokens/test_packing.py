from __future__ import annotations

import dataclasses
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from skytrain.config import BatchSizes, SkytrainError
from skytrain.storage import Store
from skytrain.tokens import Batch, BatchSettings, PackedSplit, TokenDataModule, TokenSplit, as_batch
from skytrain.tokens.mixture import Phase
from skytrain.tokens.packing import pack_documents

from .conftest import PREFIX, TOKENIZER, documents, write_split

T = 16
EOT = TOKENIZER.eot


def packed(store: Store, docs: list[np.ndarray]) -> PackedSplit:
    write_split(store, docs, shard_tokens=400)
    return PackedSplit.of(TokenSplit.open(store, PREFIX))


def first_fit_windows(lengths: list[int], capacity: int) -> int:
    """A plain best-fit decreasing, to compare the number of windows with."""
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, left in enumerate(room) if left >= length]
        if fits:
            room[min(fits, key=lambda i: room[i])] -= length
        else:
            room.append(capacity - length)
    return len(room)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_every_token_is_predicted_once_and_no_window_is_overfull(lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    packing = pack_documents(ends, T)
    held = np.add.reduceat(packing.lengths, packing.first[:-1])
    assert held.max() <= T + 1 and len(held) == packing.windows
    predicted = Counter(
        position
        for start, length in zip(packing.starts.tolist(), packing.lengths.tolist(), strict=True)
        for position in range(start + 1, start + length)
    )
    firsts = set((ends - np.array(lengths)).tolist())
    assert predicted == Counter(position for position in range(int(ends[-1])) if position not in firsts)
    pieces = packing.lengths.tolist()
    assert packing.windows == first_fit_windows(pieces, T + 1)


def test_documents_that_fit_are_never_cut(store: Store) -> None:
    docs = [ids for ids in documents(200) if len(ids) < T]
    split = packed(store, docs)
    batch = split.batch(np.arange(split.windows(T)), T)
    found = Counter()
    for row, counts in zip(batch.windows, batch.mask, strict=True):
        text = row[torch.cat([torch.tensor([True]), counts])].tolist()  # without padding
        for piece in " ".join(map(str, text)).split(str(EOT)):
            if piece.strip():
                found[piece.strip()] += 1
    assert found == Counter(" ".join(map(str, ids.tolist())) for ids in docs)


def test_padding_is_reported_and_is_what_the_batches_hold(store: Store) -> None:
    split = packed(store, documents(200))
    batch = split.batch(np.arange(split.windows(T)), T)
    # Of the positions after the last document, its end is predicted and the rest is not.
    ends = [[at for at, token in enumerate(row) if token != EOT][-1] + 1 for row in batch.windows.tolist()]
    padding = sum(T + 1 - end for end in ends)
    assert split.padding_fraction(T) == pytest.approx(padding / batch.windows.numel())
    assert split.leftover_tokens(T) == 0


def test_a_piece_that_continues_a_document_and_padding_are_read_but_never_predicted(store: Store) -> None:
    split = packed(store, [np.arange(1, 8), np.arange(1, T + 5)])  # the second one needs two windows
    batch = split.batch(np.arange(2), T, document_starts=True)
    padding = T + 1 - 8 - 5
    assert batch.tokens[1].tolist() == [EOT, *range(1, 8), *range(T, T + 5), *[EOT] * (padding - 1)]
    predicted = [*range(1, 8), -100, *range(T + 1, T + 5), EOT]  # the end of the last document too
    assert batch.targets[1].tolist() == [*predicted, *[-100] * (padding - 1)]
    assert batch.document_starts[1].nonzero().flatten().tolist() == [0, 8, *range(13, T)]
    assert batch.mask[0].all() and batch.document_starts[0].nonzero().flatten().tolist() == [0]


def test_plain_windows_pass_unchanged() -> None:
    windows = torch.arange(12).reshape(2, 6)
    batch = as_batch(windows)
    assert as_batch(batch) is batch
    assert torch.equal(batch.tokens, windows[:, :-1]) and torch.equal(batch.targets, windows[:, 1:])


def test_rows_that_are_added_to_a_batch_have_no_target_that_counts() -> None:
    batch = Batch(torch.arange(12).reshape(2, 6), document_starts=torch.zeros(2, 5, dtype=torch.bool))
    padded = batch.padded_to(3)
    assert padded.rows == 3 and torch.equal(padded.take(slice(2)).targets, batch.targets)
    assert padded.targets[2].tolist() == [-100] * 5 and padded.document_starts[2].all()
    assert batch.padded_to(2) is batch


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_windows_go_through_the_loader_once_an_epoch(store: Store, workers: int) -> None:
    split = packed(store, documents(60))
    count = split.windows(T) // 2 * 2
    batches = BatchSettings(
        sequence_length=T, micro_batch=2, batches=BatchSizes(2), total_steps=count // 2, seed=1, workers=workers
    )
    module = TokenDataModule(split, None, batches)
    rows = [tuple(row) for batch in module.train_dataloader() for row in batch.windows.tolist()]
    expected = Counter(map(tuple, split.batch(np.arange(split.windows(T)), T).windows.tolist()))
    assert len(rows) == count and not Counter(rows) - expected


def counted_targets(batches: list[Batch]) -> int:
    return sum(int((batch.targets >= 0).sum()) for batch in batches)


def test_the_targets_of_a_step_are_known_without_reading_it(store: Store) -> None:
    split, other = packed(store, documents(60)), TokenSplit.open(store, PREFIX)
    settings = BatchSettings(sequence_length=T, micro_batch=2, batches=BatchSizes(4), total_steps=6, seed=1)
    module = TokenDataModule(split, None, settings)
    batches = list(module.train_dataloader())
    counted = [counted_targets(batches[at : at + 2]) for at in range(0, len(batches), 2)]
    assert len(set(counted)) > 1 and [module.targets_in_step(step) for step in range(6)] == counted
    module.load_state_dict({"position": 8, "step": 2})
    assert [module.targets_in_step(step) for step in range(2, 6)] == counted[2:]
    assert TokenDataModule(other, None, settings).targets_in_step(0) is None  # all of them
    mixed = TokenDataModule(
        {"a": split, "b": other}, None, dataclasses.replace(settings, phases=[Phase(0, (0.5, 0.5))])
    )
    assert mixed.targets_in_step(0) == counted_targets(list(mixed.train_dataloader())[:2])


def test_a_packed_split_travels_to_a_worker(store: Store) -> None:
    split = packed(store, documents(60))
    copy = pickle.loads(pickle.dumps(split))
    there, here = copy.batch(np.arange(5), T), split.batch(np.arange(5), T)
    assert torch.equal(there.windows, here.windows) and torch.equal(there.mask, here.mask)


def test_an_altered_index_is_named(store: Store) -> None:
    write_split(store, documents(60))
    store.write(f"{PREFIX}/shard-00001.idx", b"\0" * 8)
    with pytest.raises(SkytrainError, match=r"shard-00001\.idx is damaged: it was altered"):
        PackedSplit.of(TokenSplit.open(store, PREFIX))
