# %% [markdown]
# # 1. A transformer and its loss
# You know PyTorch. This lesson builds the model that the other nine spread over processes, computes its loss by hand,
# and checks both against PyTorch. Nothing here is parallel yet.
#
# Time: a few seconds.

# %%
import inspect
import math

import torch
import torch.nn.functional as F
from tools import Block, TinyLM, check, next_token_loss, text_windows

torch.manual_seed(0)

# %% [markdown]
# ## Text is numbers
# A language model reads tokens. Here a token is a byte, so there are 256. A window of 65 bytes gives 64 predictions:
# each byte is to be guessed from those before it.

# %%
windows = text_windows(count=8, length=64)
print(windows.shape, repr(bytes(windows[0].tolist()).decode()[:60]))

# %% [markdown]
# ## Attention by hand
# Each position looks at itself and at all earlier ones. It asks with a query (`q`), each of them has a key (`k`), and the
# softmax of the products says how much of each value (`v`) it takes. The mask hides the future. This is one head; a
# model has several side by side, each with its own part of the width.

# %%
time, size = 6, 8
q, k, v = torch.randn(3, time, size)
scores = q @ k.T / math.sqrt(size)
scores = scores.masked_fill(torch.ones(time, time).triu(1).bool(), -math.inf)
by_hand = scores.softmax(-1) @ v
pytorch = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
print("largest difference:", float((by_hand - pytorch).abs().max()))

# %% [markdown]
# ## The whole model
# A block is attention and an MLP, each added to a stream that runs through the model. The model is two embeddings (of the
# token and of its place), some blocks, and a last layer, also called the head, that scores every possible next token.

# %%
print(inspect.getsource(Block), inspect.getsource(TinyLM), sep="\n")
model = TinyLM()
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# ## The loss by hand
# The loss is the mean of `-log p(the byte that came)`. It is the number that pretraining makes smaller, in nats. Divided
# by `log 2` it is in bits: what a byte of this text would cost if the model compressed it.

# %%
logits = model(windows[:, :-1])
probabilities = logits.softmax(-1)
of_target = probabilities.gather(-1, windows[:, 1:, None])[..., 0]
by_hand = -of_target.log().mean()
print(f"by hand {by_hand:.6f}, by PyTorch {next_token_loss(model, windows):.6f}")
print(f"a model that knows nothing: log(256) = {math.log(256):.4f}")

# %% [markdown]
# The untrained model is a little worse than one that knows nothing: its guesses are random, not even.
#
# ## Ours
# Skytrain's models are single-device PyTorch, too: `forward(tokens) -> logits`. Everything parallel is done to them from
# outside. This is the quickstart's small Llama with a vocabulary of 4,096 tokens.

# %%
import skytrain

ours = skytrain.lightning_module("recipe=quickstart").model
tokens = torch.randint(4096, (4, 64))
loss = F.cross_entropy(ours(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
print(type(ours).__name__, f"{sum(p.numel() for p in ours.parameters()):,} parameters, untrained loss {loss:.4f}")

# %% [markdown]
# ## Question
# A model with a vocabulary of 4,096 tokens gives each of them the same probability. What is its loss, in nats? Compare
# with the line above.

# %%
answer = None
check(1, answer)

# %% [markdown]
# ## Read next
# - [Models](../docs/models.md): the families that one decoder builds.
# - Karpathy's nanoGPT, `model.py`: the same in 300 lines, with dropout and weight tying.
# - Next lesson: one process that trains it.
