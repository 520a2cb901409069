"""A worker of the health check: all-reduces for some seconds, and fails if a sum is wrong.

torchrun --standalone --nproc-per-node 8 -m skytrain.jobs.all_reduce nccl 30
"""

from __future__ import annotations

import sys
import time

NUMBERS = 1 << 22


def main(backend: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    rank = dist.get_rank()
    world = dist.get_world_size()
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    began = time.monotonic()
    going = torch.ones(1, device=device)
    # Rank 0's clock decides for all ranks when to stop.
    while going.item():
        values = torch.full((NUMBERS,), float(rank + 1), device=device)
        dist.all_reduce(values)
        expected = world * (world + 1) / 2
        if not bool((values == expected).all()):
            raise ArithmeticError(f"rank {rank}: a sum of 1 to {world} is not {expected}")
        going.fill_(float(time.monotonic() - began < seconds))
        dist.broadcast(going, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
