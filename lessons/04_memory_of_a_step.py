# %% [markdown]
# # 4. The memory of a training step
# Why does a model with 1.5 billion parameters, 3 GB in bf16, not train on a GPU with 16 GB? We count what a step holds,
# and measure it.
#
# Time: a few seconds.

# %%
import torch
from tools import TinyLM, check, next_token_loss, text_windows
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
model = TinyLM(width=128, layers=4)
windows = text_windows(count=8, length=128)
parameters = sum(p.numel() for p in model.parameters())

# %% [markdown]
# ## Weights, gradients, optimizer
# These depend only on the number of parameters. AdamW keeps two numbers for each parameter: the mean of its gradients
# and of their squares.

# %%
optimizer = torch.optim.AdamW(model.parameters())
next_token_loss(model, windows).backward()
optimizer.step()


def size(tensors) -> int:
    """Return the bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


weights = size(model.parameters())
gradients = size(p.grad for p in model.parameters())
moments = size(t for state in optimizer.state.values() for t in state.values() if t.numel() > 1)
for name, measured in (("weights", weights), ("gradients", gradients), ("AdamW's moments", moments)):
    print(f"{name:16} {measured / 1e6:6.2f} MB = {measured / parameters:.1f} bytes per parameter")

# %% [markdown]
# In float32 that is 16 bytes per parameter. Mixed precision needs 16 as well. Megatron and DeepSpeed hold 2 for the bf16
# weights, 2 for the bf16 gradients, and 12 for a float32 copy of the weights and the two moments. PyTorch's autocast and
# Skytrain's `bf16-mixed` hold float32 as above, and cast each matrix to bf16 when they multiply.
#
# ## Activations
# The backward pass needs what the forward pass computed. PyTorch keeps those tensors, and lets us look at each one it
# saves. They depend on the batch, not on the parameters.

# %%


def saved_bytes(compute) -> int:
    """Return the bytes that autograd keeps for the backward pass, each storage once, without the weights."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}
    alive = []  # so that no address is used twice while we count

    def pack(tensor):
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return sum(storages.values())


for batch in (2, 4, 8):
    measured = saved_bytes(lambda batch=batch: next_token_loss(model, windows[:batch]))
    print(f"batch {batch}: activations {measured / 1e6:6.2f} MB, {measured / (batch * 128):,.0f} bytes per token")

# %% [markdown]
# Twice the batch, twice the activations. For a block of width `d`, count what it saves in numbers per token: the norms
# and linear layers keep their inputs, attention keeps queries, keys, values and its result, GELU keeps its input.

# %%
d = 128
counted = {
    "norm 1: input, mean and scale": d + 2,
    "qkv: its input": d,
    "attention: q, k, v": 3 * d,
    "attention: result, a number per head; out's input": d + 4,
    "norm 2: input, mean and scale": d + 2,
    "up: its input": d,
    "GELU: its input": 4 * d,
    "down: its input": 4 * d,
}
block = model.blocks[0]
x = torch.randn(8, 128, d, requires_grad=True)
measured = saved_bytes(lambda: block(x)) / (8 * 128 * 4)
print(f"counted {sum(counted.values())} numbers per token in a block, measured {measured:.0f}")

# %% [markdown]
# ## Compute it again instead
# *Activation checkpointing* keeps only the input of each block, and computes the rest again in the backward pass. One
# more forward pass, a third more compute, buys most of the memory.

# %%


def recomputed() -> None:
    """Run the model with only the blocks' inputs kept."""
    x = model.embed(windows[:, :-1]) + model.place(torch.arange(128))
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    model.head(model.norm(x)).sum()


print(f"activations: {saved_bytes(lambda: model(windows[:, :-1]).sum()) / 1e6:.2f} MB whole, ", end="")
print(f"{saved_bytes(recomputed) / 1e6:.2f} MB with checkpointing")

# %% [markdown]
# ## Ours
# `skytrain plan` counts the same for every model and mesh before you rent a GPU. Here is GPT-2 1.5B on one machine
# of several types: a GPU of p4d has 40 GB, of g6e 48, of p4de and p5 80, of p5en 141. The micro-batch is the fastest
# that fits, a power of two, so activations take much of what the rest leaves free. With `fsdp(shard=8)` eight GPUs
# divide weights, gradients and moments among them (next lesson). So a GPU of p4d, smaller than that of g6e, has room
# for more sequences.

# %%
import skytrain

planned = skytrain.plan("model=gpt2-1558m", "trainer.tokens=1B", nodes=1, market="on-demand")
seen = set()
for row in planned.rows():
    if row["memory_bytes"] and row["instance_type"] not in seen and len(seen) < 6:
        seen.add(row["instance_type"])
        gigabytes = row["memory_bytes"] / 1e9
        print(
            f"{row['instance_type']:16} {row['mesh']:28} micro-batch {row['micro_batch']:2}  {gigabytes:5.1f} GB per GPU"
        )

# %% [markdown]
# ## Question
# How many gigabytes (10^9 bytes) do weights, gradients and AdamW's state of a model with 1.5 billion parameters take in
# mixed precision, without any activation?

# %%
answer = None
check(4, answer)

# %% [markdown]
# ## Read next
# - [Planning](../docs/planning.md): the memory of a rank, term by term.
# - Korthikanti et al., *Reducing activation recomputation in large transformer models* (2022).
# - Next lesson: hold each number once.
