# %% [markdown]
# # 6. Tensor parallel by hand
# ZeRO divides what is stored; each GPU still multiplies whole matrices. Tensor parallelism divides the multiplication:
# each rank holds some columns or rows of every matrix, and computes with those only.
#
# Time: under a minute on two cores.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tools import check, compare_ours, run_ranks

# %% [markdown]
# ## Columns, then rows
# An MLP is `down(gelu(up(x)))`. Give each rank half of the *columns* of `up`: it computes half of the hidden numbers, and
# GELU acts on each of them alone. Then give it the matching *rows* of `down`: it computes a part of every output number,
# and the parts must be added. So one all-reduce, after two matrices.
#
# `gelu(x [A1 A2]) [B1; B2] = gelu(x A1) B1 + gelu(x A2) B2`
#
# Matrices are written as in `x @ A`. `nn.Linear` stores the transpose, so there the columns of `A` are rows of `weight`.

# %%
torch.manual_seed(0)
x, A, B = torch.randn(4, 16), torch.randn(16, 64), torch.randn(64, 16)
whole = F.gelu(x @ A) @ B
parts = sum(F.gelu(x @ columns) @ rows for columns, rows in zip(A.chunk(2, 1), B.chunk(2, 0), strict=True))
print("largest difference:", float((whole - parts).abs().max()))

# %% [markdown]
# ## Forward and backward, on two ranks
# The backward pass needs an all-reduce, too: `x` went into both halves, so its gradient is the sum of both. Megatron
# calls the pair *f* and *g*: *f* does nothing forward and all-reduces backward, *g* the other way round.

# %%


class AllReduceBackward(torch.autograd.Function):
    """Megatron's f: the identity, whose gradient is added over all ranks."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class AllReduceForward(torch.autograd.Function):
    """Megatron's g: the sum over all ranks, whose gradient is passed on."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


def parallel_block(rank: int, world: int, width: int, heads: int) -> dict:
    """Compute attention and MLP with a half of the heads and of the hidden numbers on each rank."""
    torch.manual_seed(0)  # all ranks draw the whole matrices, and keep their part
    x = torch.randn(2, 6, width, requires_grad=True)
    qkv, out = torch.randn(3, width, width) / 4, torch.randn(width, width) / 4
    up, down = torch.randn(width, 4 * width) / 4, torch.randn(4 * width, width) / 4

    def attention(h, qkv, out, heads):
        q, k, v = ((h @ each).unflatten(-1, (heads, -1)).transpose(1, 2) for each in qkv)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ out

    def block(x, f, g, qkv, out, up, down, heads):
        x = x + g(attention(f(x), qkv, out, heads))
        return x + g(F.gelu(f(x) @ up) @ down)

    same = lambda x: x  # noqa: E731
    whole = block(x, same, same, qkv, out, up, down, heads)
    (expected,) = torch.autograd.grad(whole.square().sum(), x)
    mine = lambda matrix, dimension: matrix.chunk(world, dimension)[rank]  # noqa: E731
    divided = block(
        x,
        AllReduceBackward.apply,
        AllReduceForward.apply,
        mine(qkv, 2),  # columns: whole heads
        mine(out, 0),  # rows
        mine(up, 1),
        mine(down, 0),
        heads // world,
    )
    (gradient,) = torch.autograd.grad(divided.square().sum(), x)
    kept = sum(mine(matrix, d).numel() for matrix, d in ((qkv, 2), (out, 0), (up, 1), (down, 0)))
    return {
        "output": (divided - whole).abs().max().item(),
        "gradient": ((gradient - expected).abs().max() / expected.abs().max()).item(),
        "kept": kept / (12 * width * width),
    }


for rank, each in enumerate(run_ranks(parallel_block, 2, AllReduceBackward, AllReduceForward, width=32, heads=4)):
    print(
        f"rank {rank}: holds {each['kept']:.0%} of the weights; output differs by {each['output']:.1e}, "
        f"the input's gradient by {each['gradient']:.1e} of its largest"
    )

# %% [markdown]
# Attention divides by heads: a head needs nothing of another. A block has two *f* and two *g*: two all-reduces forward,
# two backward, each of a whole activation. The next multiplication has to wait for each of them. That is why tensor
# parallel ranks share a machine, where the links are fast.
#
# ## Ours
# `parallel=tp`. The vocabulary is divided as well: the loss is computed without ever gathering the logits.

# %%
compare_ours("tp")

# %% [markdown]
# ## Question
# How many all-reduces do the blocks of a model with 12 layers need in one forward and one backward pass, divided as here?

# %%
answer = None
check(6, answer)

# %% [markdown]
# ## Read next
# - [Parallelism](../docs/parallelism.md#the-modes): the tensor plan of each family.
# - Shoeybi et al., *Megatron-LM* (2019): *f* and *g* are theirs.
# - Next lesson: divide the layers.
