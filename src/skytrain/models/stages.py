"""Pipeline stages of a decoder: consecutive blocks, with parameters named as in the whole model."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from .decoder import Decoder
from .places import Places
from .rope import rotation, rotation_at


class DecoderStage(nn.Module):
    """Consecutive blocks of a decoder, with the embedding in the first stage and the head in the last.

    The first stage takes tokens, the others the output of the previous stage. `length` is the length of the whole
    sequence, which a later stage cannot derive from its input: that may be only a part of the sequence.
    """

    def __init__(self, model: Decoder, layers: range, length: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.config = model.config
        self.length = length
        self.places: Places | None = None  # as in Decoder
        # Copied, so that stages on one device share no parameters: each is wrapped separately.
        self.embedding = copy.deepcopy(model.embedding) if first else None
        self.blocks = nn.ModuleDict({str(layer): copy.deepcopy(model.blocks[str(layer)]) for layer in layers})
        self.head = copy.deepcopy(model.head) if last else None

    def forward(self, x: Tensor) -> Tensor:
        places_bt = self.places.tensor(x.device)[None] if self.places is not None else None
        if self.embedding is not None:
            x = self.embedding(x, 0, places_bt)
        turn = rotation(self.config, 0, self.length, x.device) if self.config.positions == "rope" else None
        if turn is not None and places_bt is not None:
            turn = rotation_at(turn, places_bt)
        for block in self.blocks.values():
            x = block(x, turn)
        return self.head(x) if self.head is not None else x


def stage_layers(layers: int, stages: int) -> list[range]:
    """Assign consecutive layers to each stage, as evenly as possible.

    If the counts differ, the first and last stages get fewer, since they also hold the embedding and the head.
    """
    assert 1 <= stages <= layers
    each, more = divmod(layers, stages)
    begin = (stages - more + 1) // 2  # stages with one extra layer are in the middle
    found = []
    start = 0
    for stage in range(stages):
        stop = start + each + (begin <= stage < begin + more)
        found.append(range(start, stop))
        start = stop
    return found
