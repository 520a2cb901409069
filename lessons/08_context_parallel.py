# %% [markdown]
# # 8. Context parallel
# Activations grow with the length of the sequence, and attention's work with its square. Context parallelism gives each
# rank a part of *every* sequence. Only attention needs the other parts; everything else acts on one token at a time.
#
# Time: under a minute on two cores.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tools import check, compare_ours, run_ranks

# %% [markdown]
# ## Softmax in pieces
# To attend to keys that arrive in pieces, keep three things: the largest score so far, the sum of the exponentials, and
# the weighted sum of the values. A larger score rescales what was summed. This *online softmax* is also how
# FlashAttention works.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 8, 16)
largest, total, summed = torch.full((8, 1), -torch.inf), torch.zeros(8, 1), torch.zeros(8, 16)
for keys, values in zip(k.chunk(4), v.chunk(4), strict=True):
    scores = q @ keys.T / 4
    new = torch.maximum(largest, scores.amax(-1, keepdim=True))
    scale = (largest - new).exp()
    weights = (scores - new).exp()
    total = total * scale + weights.sum(-1, keepdim=True)
    summed = summed * scale + weights @ values
    largest = new
whole = (q @ k.T / 4).softmax(-1) @ v
print("largest difference:", float((summed / total - whole).abs().max()))

# %% [markdown]
# ## Ring attention
# Each rank keeps its queries, and passes keys and values around a ring. After `world` rounds it has seen them all. It
# never holds more than two parts: the one in use and the one that arrives. With a causal mask some rounds are for
# nothing: the keys are all in the future. We count the scores that each rank needs, for two ways to deal out the
# sequence.
#
# *Contiguous*: rank 0 has the first half. *Zigzag*: the sequence is cut into `2 x world` pieces, and rank `r` gets the
# piece `r` from the front and the piece `r` from the back.

# %%


def ring_attention(rank: int, world: int, length: int, layout: str) -> dict:
    """Return how far ring attention is from attention in one piece, and this rank's share of the work."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, length, 16)
    pieces = torch.arange(length).chunk(2 * world)
    if layout == "zigzag":
        places = [torch.cat([pieces[r], pieces[2 * world - 1 - r]]) for r in range(world)]
    else:
        places = [torch.cat([pieces[2 * r], pieces[2 * r + 1]]) for r in range(world)]
    mine = places[rank]
    held = torch.stack([k[mine], v[mine]])
    largest = torch.full((len(mine), 1), -1e30)
    total, summed, work = torch.zeros(len(mine), 1), torch.zeros(len(mine), 16), 0
    for round in range(world):
        theirs = places[(rank - round) % world]  # whose keys these are
        seen = mine[:, None] >= theirs[None, :]
        work += int(seen.sum())
        scores = (q[mine] @ held[0].T / 4).masked_fill(~seen, -1e30)
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = (scores - new).exp() * seen
        scale = (largest - new).exp()
        total = total * scale + weights.sum(-1, keepdim=True)
        summed = summed * scale + weights @ held[1]
        largest = new
        arriving = torch.empty_like(held)
        send = dist.isend(held.contiguous(), (rank + 1) % world)
        dist.recv(arriving, (rank - 1) % world)
        send.wait()
        held = arriving
    whole = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    everything = length * (length + 1) // 2
    return {"difference": (summed / total - whole[mine]).abs().max().item(), "share": work / everything}


for layout in ("contiguous", "zigzag"):
    ranks = run_ranks(ring_attention, 2, length=512, layout=layout)
    shares = ", ".join(f"rank {r} {each['share']:.1%}" for r, each in enumerate(ranks))
    print(f"{layout:10}: work {shares}; differs by {max(each['difference'] for each in ranks):.1e}")

# %% [markdown]
# Contiguous parts make the last rank the slowest, and everyone waits for it. Zigzag is even, for the same messages.
#
# ## Ours
# `parallel=cp`, with `parallel.context_method=ring`, `allgather` or `ulysses` (which exchanges heads for positions).

# %%
compare_ours("cp")

# %% [markdown]
# ## Question
# A long sequence is dealt out contiguously over 2 ranks, with a causal mask. What percentage of attention's work does
# rank 1 do? (In the limit of a long sequence: a whole number.)

# %%
answer = None
check(8, answer)

# %% [markdown]
# ## Read next
# - [Parallelism](../docs/parallelism.md): the three methods, and which models allow which.
# - Liu et al., *Ring attention with blockwise transformers* (2023); Jacobs et al., *DeepSpeed-Ulysses* (2023).
# - Next lesson: all of them together.
