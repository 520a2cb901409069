# %% [markdown]
# # 3. Data parallel by hand
# Two processes hold the same model. Each computes the gradient of half of the batch. They average their gradients, and
# both make the same update. That is *distributed data parallel* (DDP). We write it in ten lines, and the all-reduce
# inside it in another ten.
#
# Time: under a minute on two cores.

# %%
import torch
import torch.distributed as dist
from tools import Block, TinyLM, check, compare_ours, next_token_loss, run_ranks, text_windows

# %% [markdown]
# ## One process is the reference

# %%
torch.manual_seed(0)
model = TinyLM()
windows = text_windows(count=8, length=32)
next_token_loss(model, windows).backward()
reference = torch.cat([p.grad.flatten() for p in model.parameters()])
print("norm of the gradient:", float(reference.norm()))

# %% [markdown]
# ## Two processes
# `run_ranks` starts two processes that share nothing but a way to send messages. Each knows its *rank* (0 or 1) and the
# *world* size (2). A new process knows nothing of this one, so we name the classes and functions that it needs.
# `dist.all_reduce` adds a tensor over all ranks and gives everyone the sum.

# %%


def ddp_gradient(rank: int, world: int, windows: list) -> dict:
    """Return the loss of this rank's half and the averaged gradient's norm."""
    torch.manual_seed(0)  # the same seed: the same weights on each rank
    model = TinyLM()
    mine = torch.tensor(windows).chunk(world)[rank]
    loss = next_token_loss(model, mine)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    return {"loss": loss.item(), "norm": flat.norm().item(), "first": flat[:20000].tolist()}


ranks = run_ranks(ddp_gradient, 2, Block, TinyLM, next_token_loss, windows=windows.tolist())
for rank, each in enumerate(ranks):
    difference = (torch.tensor(each["first"]) - reference[:20000]).abs().max()
    print(f"rank {rank}: loss of its half {each['loss']:.4f}, norm {each['norm']:.7f}, differs by {difference:.1e}")

# %% [markdown]
# The halves have different losses, yet both ranks end with the gradient of the whole batch. If the updates are equal,
# the models stay equal, for ever, without sending a single weight.
#
# ## The all-reduce inside
# Who adds the gradients up? If all sent theirs to rank 0, its network would be the limit. In a *ring*, each rank only talks
# to its neighbours. The vector is cut into as many parts as there are ranks. In `world - 1` rounds the parts travel and
# are added up (*reduce-scatter*), then in `world - 1` rounds the sums travel (*all-gather*). We count the bytes.

# %%


def ring_all_reduce(rank: int, world: int, size: int) -> dict:
    """Add a vector over all ranks with messages to the right-hand neighbour only."""
    x = torch.arange(size, dtype=torch.float32) * (rank + 1)
    expected = torch.arange(size, dtype=torch.float32) * sum(range(1, world + 1))
    parts = list(x.chunk(world))
    sent = 0
    for round in range(2 * (world - 1)):
        adding = round < world - 1
        out, into = (rank - round) % world, (rank - round - 1) % world
        received = torch.empty_like(parts[into])
        right, left = (rank + 1) % world, (rank - 1) % world
        send = dist.isend(parts[out].clone(), right)
        dist.recv(received, left)
        send.wait()
        sent += parts[out].numel() * 4
        parts[into].copy_(parts[into] + received if adding else received)
    return {"right": bool(torch.equal(torch.cat(parts), expected)), "sent": sent}


size = 1_000_000
for rank, each in enumerate(run_ranks(ring_all_reduce, 4, size=size)):
    print(f"rank {rank}: right sum: {each['right']}, sent {each['sent'] / 1e6:.1f} MB for {size * 4 / 1e6:.1f} MB")

# %% [markdown]
# Each of `n` ranks sends `2 (n - 1) / n` times the vector: never more than twice, however many ranks there are. This is
# why data parallelism scales.
#
# ## Ours
# `parallel=ddp`. DDP also sends gradients while the backward pass still computes others; the sums are the same.

# %%
compare_ours("ddp")

# %% [markdown]
# ## Question
# A model has 100 million parameters, its gradients are float32, and 4 ranks average them by a ring. How many megabytes
# (10^6 bytes) does each rank send in a step?

# %%
answer = None
check(3, answer)

# %% [markdown]
# ## Read next
# - [Parallelism](../docs/parallelism.md): every mode beside one process.
# - Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations* (2009).
# - Next lesson: what fills the memory.
