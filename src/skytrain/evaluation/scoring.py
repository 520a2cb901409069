"""Score many continuations with a model on any mesh: plan the passes, share them among ranks, and add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..models import Branches
from .continuations import Continuation, ContinuationScores
from .scorer import RowLengths, Scorer, TargetScores
from .trees import PackedRows, TokenTable, Tree, fill_rows, grow_trees, pack

Progress = Callable[[int, int], None]
ROW_STEP = 64  # packed rows are a multiple of this long


@dataclass(frozen=True)
class PlainRows:
    """A batch with one continuation in each row."""

    tokens_bt: np.ndarray
    targets_bt: np.ndarray
    scored_bt: np.ndarray  # which targets are scored
    numbers_n: np.ndarray  # the continuation that each of those belongs to


MakeBatch = Callable[[], PackedRows | PlainRows]


def score_continuations(
    model: Scorer, groups: Sequence[Sequence[Continuation]], progress: Progress | None = None
) -> ContinuationScores:
    """Return scores in the order of the groups' members; members of a group share the computation of a common prefix.

    All ranks of the model call this with the same groups and get the same result. The passes do not depend on the number
    of ranks, and each continuation is scored by exactly one share of them, so neither do the scores.
    """
    flat = [each for group in groups for each in group]
    # Made when they are needed: a GPU computes one batch while the next is made.
    batches = _packed_batches(model, model.packed_rows, groups) if model.packed_rows else _plain_batches(model, flat)
    share = model.share
    mine: list[tuple[np.ndarray, TargetScores]] = []
    # Each share takes part in as many passes as the others: a mesh computes together.
    for first in range(0, len(batches), share.count):
        place = first + share.index
        batch = batches[min(place, len(batches) - 1)]()
        scores = _score(model, batch)
        if place < len(batches):
            mine.append((batch.numbers_n, scores))
        if progress:
            progress(min(first + share.count, len(batches)), len(batches))
    return _add_up(model, mine, len(flat))


def _score(model: Scorer, batch: PackedRows | PlainRows) -> TargetScores:
    if isinstance(batch, PackedRows):
        layout = (batch.trees_bt, batch.branches_bt, batch.places_bt, batch.asked_n)
        branches = Branches(*(torch.from_numpy(each) for each in layout))
        return model.branch_scores(torch.from_numpy(batch.tokens_bt), branches, torch.from_numpy(batch.targets_n))
    scores = model.target_scores(torch.from_numpy(batch.tokens_bt), torch.from_numpy(batch.targets_bt))
    kept = torch.from_numpy(batch.scored_bt).to(scores.log_probs.device)
    return TargetScores(scores.log_probs[kept], scores.greedy[kept])


def _add_up(model: Scorer, scores: Sequence[tuple[np.ndarray, TargetScores]], count: int) -> ContinuationScores:
    """Sum the targets of each continuation in float64, in the order of its tokens, then over the ranks."""
    sums = np.zeros((2, count))
    if scores:
        numbers = np.concatenate([each for each, _ in scores])
        sums[0] = np.bincount(numbers, _on_cpu([batch.log_probs for _, batch in scores]), count)
        sums[1] = np.bincount(numbers, 1.0 - _on_cpu([batch.greedy for _, batch in scores]), count)
    # A share has zeros where another one has values, so that adding them is exact.
    log_probs, missed = model.add_up(torch.from_numpy(sums)).cpu().numpy()
    return ContinuationScores(log_probs, missed == 0)


def _on_cpu(parts: Sequence[Tensor]) -> np.ndarray:
    values: np.ndarray = torch.cat(list(parts)).double().cpu().numpy()
    return values


def _packed_batches(model: Scorer, lengths: RowLengths, groups: Sequence[Sequence[Continuation]]) -> list[MakeBatch]:
    """Plan rows of one length and batches of one size, so that a compiler sees a single shape."""
    trees: list[Tree] = []
    number = 0
    for group in groups:
        trees += grow_trees(group, number, lengths.longest)
        number += len(group)
    table = TokenTable.of([each for group in groups for each in group])
    needed = max(lengths.usual, *(tree.length for tree in trees))
    length = min(lengths.longest, -(-needed // ROW_STEP) * ROW_STEP)
    rows = fill_rows(trees, length)
    size = max(1, min(len(rows), model.batch_tokens // length))
    return [partial(pack, table, rows[first : first + size], length, size) for first in range(0, len(rows), size)]


def _plain_batches(model: Scorer, flat: Sequence[Continuation]) -> list[MakeBatch]:
    """Batch continuations of similar length, the longest first: memory that suffices once suffices always."""
    order = sorted(range(len(flat)), key=lambda number: (-len(flat[number].inputs), number))
    batches: list[MakeBatch] = []
    first = 0
    while first < len(order):
        length = model.row_length(len(flat[order[first]].inputs))
        numbers = order[first : first + max(1, model.batch_tokens // length)]
        batches.append(partial(_plain_rows, flat, numbers, length))
        first += len(numbers)
    return batches


def _plain_rows(flat: Sequence[Continuation], numbers: Sequence[int], length: int) -> PlainRows:
    tokens, targets = (np.zeros((len(numbers), length), np.int64) for _ in range(2))
    scored = np.zeros((len(numbers), length), bool)
    owners = []
    for row, number in enumerate(numbers):
        each = flat[number]
        held = len(each.inputs)
        tokens[row, :held] = each.inputs
        targets[row, :held] = each.tokens[1:]
        scored[row, each.start - 1 : held] = True
        owners.append(np.full(each.scored, number))
    return PlainRows(tokens, targets, scored, np.concatenate(owners))
