# %% [markdown]
# # 5. ZeRO and FSDP
# With data parallelism every rank holds all weights, gradients and moments: 16 bytes per parameter, on each GPU, the
# same. ZeRO (*zero redundancy*) lets each rank keep only its part. Stage 1 divides the optimizer's state, stage 2 the
# gradients too, stage 3 the weights too. FSDP is PyTorch's stage 3.
#
# Time: under a minute on two cores.

# %%
import torch
import torch.distributed as dist
from tools import Block, TinyLM, check, compare_ours, next_token_loss, run_ranks, text_windows
from torch import nn

# %% [markdown]
# ## All three stages by hand
# All parameters are one long vector; rank `r` owns the `r`-th part. Look at what is sent, and what is held at the end
# of each step:
#
# | stage | gradients | update | weights |
# | --- | --- | --- | --- |
# | 0 (DDP) | all-reduce: everyone has all | everyone updates all | everyone has all |
# | 1 | all-reduce | each updates its part | all-gather |
# | 2 | reduce-scatter: each gets its part | each updates its part | all-gather |
# | 3 | reduce-scatter | each updates its part | gathered before use, dropped after it |

# %%


def train_zero(rank: int, world: int, stage: int, steps: int, windows: list) -> dict:
    """Train a few steps with a ZeRO stage; return the losses and the bytes that this rank holds between steps."""
    torch.manual_seed(0)
    model = TinyLM()
    shapes = [(p, p.shape, p.numel()) for p in model.parameters()]
    total = sum(n for _, _, n in shapes)
    part = -(-total // world)  # rounded up: the vector is padded
    flat = torch.zeros(part * world)
    flat[:total] = torch.cat([p.detach().flatten() for p, _, _ in shapes])
    mine = flat[rank * part : (rank + 1) * part].clone()  # the part that this rank owns
    owner = nn.Parameter(mine if stage else flat.clone())
    optimizer = torch.optim.AdamW([owner], lr=3e-3, weight_decay=0.0)
    batch = torch.tensor(windows).chunk(world)[rank]
    losses = []
    for _ in range(steps):
        if stage == 3:  # gather all weights just before they are used
            flat = torch.empty(part * world)
            dist.all_gather_into_tensor(flat, owner.detach())
        at = 0
        for p, shape, n in shapes:  # the model's weights are views of the vector
            p.data = flat[at : at + n].view(shape)
            p.grad = None
            at += n
        loss = next_token_loss(model, batch)
        loss.backward()
        grad = torch.cat([p.grad.flatten() for p, _, _ in shapes] + [torch.zeros(part * world - total)]) / world
        if stage < 2:
            dist.all_reduce(grad)
            own = grad[rank * part : (rank + 1) * part] if stage == 1 else grad
        else:
            own = torch.empty(part)
            dist.reduce_scatter_tensor(own, grad)
            grad = None
        owner.grad = own.clone()
        optimizer.step()
        if stage in (1, 2):
            dist.all_gather_into_tensor(flat, owner.detach())
        if stage == 0:
            flat = owner.detach().clone()
        if stage == 3:
            flat = None
            for p, _, _ in shapes:
                p.data = torch.empty(0)
        total_loss = loss.detach().clone()
        dist.all_reduce(total_loss)
        losses.append(total_loss.item() / world)
    held = 4 * part * (world if stage < 3 else 1)  # weights
    held += 4 * part * (world if stage < 2 else 1)  # gradients
    held += 8 * owner.numel()  # moments
    return {"losses": losses, "held": held, "parameters": total}


windows = text_windows(count=8, length=32).tolist()
print("stage   loss at step 1   at step 5   bytes per parameter, on each of 2 ranks")
for stage in (0, 1, 2, 3):
    rank = run_ranks(train_zero, 2, Block, TinyLM, next_token_loss, stage=stage, steps=5, windows=windows)[0]
    each = rank["held"] / rank["parameters"]
    print(f"{stage:5}   {rank['losses'][0]:14.7f}   {rank['losses'][-1]:9.7f}   {each:.1f}")

# %% [markdown]
# The losses do not change: ZeRO moves memory, not mathematics. With `n` ranks, stage 3 holds `16 / n` bytes per
# parameter. (Stage 1 keeps the whole gradient here; that is what distinguishes it from stage 2.)
#
# What does it cost? An all-reduce is a reduce-scatter and an all-gather (lesson 3), so stage 2 sends as much as DDP. Stage
# 1 of the table sends half as much again: it adds an all-gather to the all-reduce.
#
# For stage 3 we gathered all weights once and kept them for the whole step. Real FSDP never holds the whole model. It
# gathers one block, while the block before still computes, and drops it after use. The backward pass needs the block
# again, so the weights are gathered twice: FSDP sends half as much again as DDP.
#
# ## Ours
# `parallel=fsdp` is stage 3; DeepSpeed's stages are `parallel=deepspeed-zero1`, `-zero2`, `-zero3`.

# %%
compare_ours("fsdp")

# %% [markdown]
# ## Question
# A model of 7.5 billion parameters is trained with mixed precision (16 bytes per parameter) and ZeRO-3 on 64 GPUs. How
# many gigabytes of weights, gradients and optimizer state does each GPU hold?

# %%
answer = None
check(5, answer)

# %% [markdown]
# ## Read next
# - [Parallelism](../docs/parallelism.md) and [checkpoints](../docs/checkpoints.md): how parts are saved, and loaded by another mesh.
# - Rajbhandari et al., *ZeRO: memory optimizations toward training trillion parameter models* (2020).
# - Next lesson: divide the multiplication itself.
