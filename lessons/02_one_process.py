# %% [markdown]
# # 2. One process
# A training step is: read a batch, compute the loss, compute gradients, update. All parallel training must give the
# same numbers as this one loop. So we look at it closely: what is a batch, what is a step, how fast is it?
#
# Time: under a minute on two cores.

# %%
import time

import torch
from tools import OURS, TinyLM, check, next_token_loss, text_windows

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## The loop

# %%
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
began = time.perf_counter()
for step in range(1, 101):
    windows = text_windows(count=16, length=64, seed=step)
    loss = next_token_loss(model, windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (1, 25, 50, 100):
        print(f"step {step:3}: loss {loss:.4f}")
seconds = time.perf_counter() - began

# %% [markdown]
# ## How fast is it?
# The forward pass multiplies each token with each parameter once: a multiplication and an addition, 2 FLOPs. The backward
# pass costs twice that. So a token costs 6 FLOPs per parameter, plus what attention adds. Embeddings are look-ups: they
# multiply nothing.

# %%
multiplying = sum(p.numel() for name, p in model.named_parameters() if not name.startswith(("embed", "place")))
tokens = 100 * 16 * 64
print(f"{tokens / seconds:,.0f} tokens/s, {6 * multiplying * tokens / seconds / 1e9:.2f} GFLOP/s")

# %% [markdown]
# ## A batch in pieces
# A batch may be too large for the memory. Gradients add up: the gradient of the mean over 16 windows is the mean of the
# gradients of 4 micro-batches of 4. Then comes one update. This is *gradient accumulation*, and data parallelism (next
# lesson) is the same with the pieces on different machines.

# %%
windows = text_windows(count=16, length=64, seed=7)


def gradient(pieces: int) -> torch.Tensor:
    """Return the gradient of the batch as one vector, computed in pieces."""
    model.zero_grad()
    for piece in windows.chunk(pieces):
        (next_token_loss(model, piece) / pieces).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


whole = gradient(1)
print("largest difference:", float((whole - gradient(4)).abs().max()), "of", float(whole.abs().max()))

# %% [markdown]
# It is not exactly zero: floating-point sums depend on their order. Skytrain's tests allow for that and no more.
#
# ## Ours
# Skytrain counts batches in tokens: `trainer.batch_tokens` for each optimizer step, `trainer.micro_batch` sequences on a
# device at a time. Accumulation follows from the two. Here a step is 1,024 tokens, 8 sequences of 128: one micro-batch
# of 8, or four of 2. A setting that only moves work around may not change the losses.

# %%
import skytrain

base = skytrain.compose(*OURS)
skytrain.prepare(base, quiet=True)
for micro_batch in (8, 2):
    words = (f"trainer.micro_batch={micro_batch}", f"run=micro-{micro_batch}")
    run = skytrain.train(base, *words, quiet=True)
    losses = run.metrics()["train/loss"]
    print(f"micro-batch {micro_batch}: loss {losses[1]:.6f} -> {losses[12]:.6f}")

# %% [markdown]
# ## Question
# A step has 32 sequences. A device holds 4 at a time, and there are 2 devices. How many micro-batches does each device
# compute in a step?

# %%
answer = None
check(2, answer)

# %% [markdown]
# ## Read next
# - [One training step](../docs/architecture.md), and `src/skytrain/training/step.py`, which has it from top to bottom.
# - [Performance](../docs/performance.md): the same step on a GPU.
# - Next lesson: two processes.
