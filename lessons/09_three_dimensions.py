# %% [markdown]
# # 9. Three dimensions, and choosing a mesh
# Real runs multiply the modes: tensor parallel inside a machine, pipeline across machines, data parallel over what is
# left. Ranks form a *mesh*: a grid with one axis per mode. This lesson builds one, sees who talks to whom, trains on one,
# and lets `plan` choose.
#
# Time: about a minute on two cores.

# %%
import torch
import torch.distributed as dist
from tools import check, compare_ours, run_ranks

# %% [markdown]
# ## A grid of ranks
# Eight ranks as 2 stages x 2 shards x 2 tensor parts. The last axis is the fastest: ranks 0 and 1 differ only in
# `tensor`, so they are neighbours, on the same machine. A rank talks only to those that differ from it in exactly one
# axis: rank 0 to 1 (tensor), 2 (shard) and 4 (pipeline).

# %%
sizes = {"pipeline": 2, "shard": 2, "tensor": 2}
place = lambda rank: (rank // 4, rank // 2 % 2, rank % 2)  # noqa: E731
for rank in range(8):
    print(f"rank {rank}: " + ", ".join(f"{name} {at}" for name, at in zip(sizes, place(rank), strict=True)))

# %% [markdown]
# ## PyTorch's mesh
# `init_device_mesh` makes a process group for each line of the grid. Four processes here, 2 x 2.

# %%


def neighbours(rank: int, world: int) -> dict:
    """Return whom this rank talks to along each axis, and check a sum over each."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    found = {}
    for axis in ("shard", "tensor"):
        group = mesh[axis].get_group()
        sum_of_ranks = torch.tensor([float(rank)])
        dist.all_reduce(sum_of_ranks, group=group)
        found[axis] = {"ranks": dist.get_process_group_ranks(group), "sum": sum_of_ranks.item()}
    return found


for rank, each in enumerate(run_ranks(neighbours, 4)):
    print(f"rank {rank}: " + "; ".join(f"{axis} {group['ranks']}" for axis, group in each.items()))

# %% [markdown]
# ## Ours: two axes at once
# `parallel=tp-fsdp`: four processes, 2 shards x 2 tensor parts. The same losses again.

# %%
compare_ours("tp-fsdp", "parallel.shard=2", "parallel.tensor=2", processes=4)

# %% [markdown]
# ## Which mesh?
# Each axis has its price. Tensor parallelism divides the memory, and every block waits for its messages. Pipeline stages
# send little, and have a bubble. Data parallelism hardly waits, and repeats everything on each rank; shards (FSDP) do
# not repeat it, and gather it instead.
#
# `skytrain plan` computes memory, time and dollars of every mesh that a machine allows. Llama 3.1 8B on one p4d, which
# has 8 A100s with 40 GiB each. For each mesh it takes the fastest micro-batch that fits:

# %%
import skytrain

meshes = ("shard=8", "shard=4,tensor=2", "shard=2,tensor=4", "tensor=8", "pipeline=2,shard=4")
print(f"{'mesh':20} {'micro-batch':>11} {'GiB per GPU':>11} {'tokens/s':>9} {'hours':>6}")
for mesh in meshes:
    try:
        planned = skytrain.plan("model=llama-3.1-8b", "trainer.tokens=1B", instance="p4d.24xlarge", nodes=1, mesh=mesh)
    except skytrain.SkytrainError as error:
        print(f"{mesh:20} {str(error).splitlines()[0][:70]}")
        continue
    best = next(row for row in planned.rows() if row["hours"])
    memory = f"{best['micro_batch']:11} {best['memory_bytes'] / 2**30:11.1f}"
    print(f"{mesh:20} {memory} {best['tokens_per_s']:9,.0f} {best['hours']:6.1f}")

# %% [markdown]
# And when it may choose machine and mesh itself, it says why:

# %%
planned = skytrain.plan("model=llama-3.1-8b", "trainer.tokens=1B", "budget.usd=2000")
chosen = planned.rows()[0]
print(planned.why)
print(f"Its mesh is {chosen['mesh']}, with micro-batches of {chosen['micro_batch']}.")

# %% [markdown]
# ## Question
# 64 GPUs run with tensor parallelism 8 and 4 pipeline stages. How many data-parallel replicas are there?

# %%
answer = None
check(9, answer)

# %% [markdown]
# ## Read next
# - [Mesh](../docs/concepts/mesh.md), and [planning](../docs/planning.md): what the search compares.
# - The *Ultra-scale playbook* of Hugging Face, for the same questions on thousands of GPUs.
# - Next lesson: what if a machine is lost?
