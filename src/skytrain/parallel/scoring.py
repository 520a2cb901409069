"""Scores for evaluators from a model on a mesh: log-probabilities of given targets, and logits of one position.

A rank may hold a part of the vocabulary, of the sequence or of the layers. It fills in what it holds and leaves the rest
zero; sums over the groups that share the work then give every rank the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .context import Context


@dataclass(frozen=True)
class VocabularyPart:
    """Logits of the columns from `start` on."""

    logits_btv: Tensor
    start: int


@dataclass(frozen=True)
class SharedScores:
    """Scores on every rank from the ranks' parts of the logits (None without the last pipeline stage)."""

    mesh: DeviceMesh
    context: Context | None
    vocab_size: int

    def logits_at(self, local: Tensor | None, position: int, shape_bt: torch.Size) -> Tensor:
        """Return the logits (B, vocabulary) of one position of the whole sequences, whose shape is given."""
        whole = torch.zeros(shape_bt[0], self.vocab_size, device=self._device(local))
        if local is not None:
            part = self._part(local)
            columns = part.logits_btv[..., : max(0, self.vocab_size - part.start)]
            row = (self._positions(shape_bt[1]) == position).nonzero()
            if len(row):
                whole[:, part.start : part.start + columns.size(-1)] = columns[:, int(row[0, 0])].float()
        for group in (self.mesh["tensor"].get_group(), *self._groups()):
            dist.all_reduce(whole, group=group)
        return whole

    def targets(self, local: Tensor | None, targets_bt: Tensor) -> Tensor:
        """Return each target's log-probability and its gap to the likeliest token, for the whole sequences."""
        whole = torch.zeros(2, *targets_bt.shape, device=targets_bt.device)
        if local is not None:
            places = self._positions(targets_bt.size(1)).to(targets_bt.device)
            whole[:, :, places] = self._divided_scores(self._part(local), targets_bt[:, places])
        for group in self._groups():
            dist.all_reduce(whole, group=group)
        return whole

    def _divided_scores(self, part: VocabularyPart, targets_bt: Tensor) -> Tensor:
        group = self.mesh["tensor"].get_group()
        logits = part.logits_btv.float()
        peak = logits.amax(-1)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        total = (logits - peak[..., None]).exp().sum(-1)
        dist.all_reduce(total, group=group)
        columns = targets_bt - part.start
        mine = (columns >= 0) & (columns < logits.size(-1))
        chosen = logits.gather(-1, torch.where(mine, columns, 0)[..., None])[..., 0]
        chosen = torch.where(mine, chosen, 0.0)
        dist.all_reduce(chosen, group=group)
        return torch.stack([chosen - peak - total.log(), peak - chosen])

    def _part(self, local: Tensor) -> VocabularyPart:
        tensor = self.mesh["tensor"]
        each = -(-local.size(-1) // tensor.size())  # DTensor gives all ranks but the last the same number
        start = each * tensor.get_local_rank()
        if isinstance(local, DTensor):
            return VocabularyPart(local.to_local(), start)
        # Whole on every rank: plans of transformers gather.
        return VocabularyPart(local[..., start : start + each], start)

    def _positions(self, length: int) -> Tensor:
        """Return the positions of the sequence that this rank holds."""
        return torch.arange(length) if self.context is None else self.context.positions.tensor(torch.device("cpu"))

    def _groups(self) -> list[dist.ProcessGroup]:
        """Return the groups whose ranks hold other positions, or no logits."""
        return [self.mesh["pipeline"].get_group(), *([self.context.group] if self.context is not None else [])]

    def _device(self, local: Tensor | None) -> torch.device:
        return local.device if local is not None else torch.device(self.mesh.device_type)
