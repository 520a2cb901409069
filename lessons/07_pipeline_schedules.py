# %% [markdown]
# # 7. Pipeline schedules
# Cut the model into stages: rank 0 has the first layers, rank 1 the next, and so on. A stage sends only activations to
# the next one, so a slow link is enough. But while rank 3 waits for its first input, it does nothing. That is the
# *bubble*. Here we run two schedules, draw who computes what, and measure the bubble against its formula.
#
# Time: under a minute on two cores.

# %%
import time

import torch
import torch.distributed as dist
from tools import check, compare_ours, run_ranks, show, timeline

# %% [markdown]
# ## The two schedules
# A batch is cut into `m` micro-batches. *GPipe* runs all forwards, then all backwards. *1F1B* (one forward, one backward)
# starts a backward as soon as it can: stage `s` of `p` first runs `p - 1 - s` forwards, then alternates.

# %%


def actions(schedule: str, stage: int, stages: int, micro_batches: int) -> list:
    """Return what a stage computes, in order: ("F", i) or ("B", i) for micro-batch i."""
    if schedule == "gpipe":
        return [["F", i] for i in range(micro_batches)] + [["B", i] for i in range(micro_batches)]
    warm_up = min(stages - 1 - stage, micro_batches)
    order = [["F", i] for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        order += [["F", warm_up + i], ["B", i]]
    return order + [["B", i] for i in range(micro_batches - warm_up, micro_batches)]


for stage in range(4):
    print(stage, " ".join(f"{kind}{i}" for kind, i in actions("1f1b", stage, 4, 8)))

# %% [markdown]
# ## Run them
# Four processes are four stages. The messages between them are real. Computing is replaced by sleeping, 100 ms forward and
# 200 ms backward, so that four stages fit on two cores: the clock then shows the schedule, and not your machine.

# %%


def run_stage(rank: int, world: int, schedule: str, micro_batches: int, forward: float, backward: float) -> dict:
    """Run one stage; return when each action began and ended, and how many activations it held at most."""
    message = torch.zeros(1024)
    sends = []
    boxes = []
    held = most = 0
    dist.barrier()
    began = time.perf_counter()
    for kind, i in actions(schedule, rank, world, micro_batches):
        source = rank - 1 if kind == "F" else rank + 1
        if 0 <= source < world:
            dist.recv(message, source)
        start = time.perf_counter() - began
        time.sleep(forward if kind == "F" else backward)
        boxes.append([start, time.perf_counter() - began, kind, i])
        held += 1 if kind == "F" else -1
        most = max(most, held)
        target = rank + 1 if kind == "F" else rank - 1
        if 0 <= target < world:
            sends.append(dist.isend(message.clone(), target))
    for each in sends:
        each.wait()
    return {"boxes": boxes, "most": most}


stages, micro_batches = 4, 8
print("schedule   bubble measured   formula   activations held at most, by stage")
for schedule in ("gpipe", "1f1b"):
    ranks = run_ranks(
        run_stage, stages, actions, schedule=schedule, micro_batches=micro_batches, forward=0.1, backward=0.2
    )
    rows = [[(a, b, f"{kind}{i}", i) for a, b, kind, i in each["boxes"]] for each in ranks]
    whole = max(box[1] for row in rows for box in row) - min(box[0] for row in rows for box in row)
    busy = sum(box[1] - box[0] for row in rows for box in row)
    bubble = 1 - busy / (stages * whole)
    formula = (stages - 1) / (micro_batches + stages - 1)
    print(f"{schedule:8}   {bubble:15.1%}   {formula:7.1%}   {[each['most'] for each in ranks]}")
    title = f"{schedule}: {stages} stages, {micro_batches} micro-batches, measured"
    show(timeline(rows, title, [f"stage {s}" for s in range(stages)]), f"pipeline-{schedule}.svg")

# %% [markdown]
# The bubble is the same: `(p - 1) / (m + p - 1)`. Each stage works for `m` forwards and backwards, and it waits for
# `p - 1` of them: while the first input passes the stages before it, and while gradients pass the stages after it.
# (Papers often divide the bubble by the time of the work, and write `(p - 1) / m`.)
#
# What 1F1B saves is memory: it holds at most `p` activations where GPipe holds all `m`. So it can use more
# micro-batches, and those make the bubble smaller:

# %%
for m in (4, 8, 16, 32, 64):
    print(f"4 stages, {m:2} micro-batches: bubble {3 / (m + 3):.1%}")

# %% [markdown]
# *Interleaved* 1F1B gives each rank two stages, and halves the bubble for twice the messages. *ZBV* cuts the backward pass
# in two, and fills the bubble with the half that nobody waits for.
#
# ## Ours
# `parallel=pp`, with `parallel.schedule=gpipe`, `1f1b`, `interleaved-1f1b` or `zbv`.

# %%
compare_ours("pp", "parallel.schedule=1f1b", "trainer.micro_batch=2")

# %% [markdown]
# ## Question
# What percentage of the time is bubble with 4 stages and 12 micro-batches?

# %%
answer = None
check(7, answer)

# %% [markdown]
# ## Read next
# - [Parallelism](../docs/parallelism.md): schedules and their memory.
# - Narayanan et al., *Efficient large-scale language model training on GPU clusters* (2021); Qi et al., *Zero bubble
#   pipeline parallelism* (2023).
# - Next lesson: divide the sequence.
