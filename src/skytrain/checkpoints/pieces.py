"""One tensor of a checkpoint, read by itself: without the planning that a whole model on a mesh needs."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ..storage import Store
from .errors import USE_ANOTHER, DamagedCheckpoint
from .manifest import SavedTensor
from .ranges import read_exactly

READS = 3  # of bytes with a wrong hash, before the store is blamed and not the network


def read_tensor(store: Store, folder: str, name: str, saved: SavedTensor) -> Tensor:
    """The whole tensor on the CPU, piece by piece; the hash of each is checked."""
    dtype: torch.dtype = getattr(torch, saved.dtype)
    target = torch.empty(saved.shape, dtype=dtype)
    for piece in saved.pieces:
        key = f"{folder}/{piece.file}"
        size = saved.piece_bytes(piece)
        for _ in range(READS):
            data = read_exactly(store, key, piece.start, size)
            if hashlib.sha256(data).hexdigest() == piece.sha256:
                break
        else:
            raise DamagedCheckpoint(
                f"{store.url(key)} was altered: the bytes of {name} are not those committed{USE_ANOTHER}"
            )
        place = target
        for dim, (offset, length) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
            place = place.narrow(dim, offset, length)
        place.copy_(torch.frombuffer(data, dtype=dtype).view(piece.sizes))
    return target
