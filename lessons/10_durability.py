# %% [markdown]
# # 10. Durability: kill it and look
# A run of weeks meets spot interruptions, crashes and full disks. A durable run loses the steps since its last
# checkpoint and nothing else: no half-written file is ever taken for a checkpoint, and the resumed run computes the same
# numbers as one that was never stopped. We kill one and look.
#
# Time: about a minute on two cores.

# %%
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools import OURS, check

import skytrain

settings = (*OURS, "trainer.steps=80", "trainer.checkpoint_every=20", "trainer.keep_checkpoints=10")
base = skytrain.compose(*settings)
prepared = skytrain.prepare(base, quiet=True)
print(f"{prepared.train.tokens:,} tokens to train on")

# %% [markdown]
# ## A run that nobody stops

# %%
whole = skytrain.train(base, "run=whole", quiet=True).metrics()["train/loss"]
print(f"step 80: loss {whole[80]:.6f}")

# %% [markdown]
# ## The same run, killed
# `SIGKILL` cannot be handled: the process is gone in the middle of whatever it did. (Ctrl-C, SIGTERM and spot notices
# save first.) We wait until it has passed step 50.

# %%
command = [sys.executable, "-m", "skytrain", "train", *settings, "run=killed", "trainer.max_restarts=0"]
process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
for line in process.stderr:
    step = re.match(r"step (\d+)/", line)
    if step and int(step[1]) >= 50:
        os.killpg(process.pid, signal.SIGKILL)
        break
process.wait()
time.sleep(1)
print("killed after", line.strip())

# %% [markdown]
# ## What is in the store?
# Every checkpoint is a folder, and exists only if it has a `COMMITTED` marker, which is written last. A folder without
# one is not a checkpoint, whatever else is in it.
#
# The state is still `running`: a killed process cannot say that it ended. After a minute without a sign of life the run
# counts as `stale`.

# %%
run = skytrain.load_run("killed", base)
folder = Path("lessons-store/runs/killed")
for path in sorted(folder.glob("checkpoints/step-*")):
    marked = any("COMMITTED" in each.name for each in path.rglob("*"))
    print(path.name, "committed" if marked else "not committed", f"{len(list(path.rglob('*')))} files")
print("newest checkpoint: step", run.checkpoint().step, "| state:", run.status().state)

# %% [markdown]
# ## The same command again
# It finds the last commit, claims a new *attempt* (so that the old process, were it still alive, could no longer commit),
# restores weights, optimizer, schedule, random generators and the position in the data, and continues.

# %%
resumed = skytrain.train(base, "run=killed", quiet=True)
losses = resumed.metrics()["train/loss"]
print("attempts:", resumed.status().attempts, "| state:", resumed.status().state)
print(f"step 80: loss {losses[80]:.6f}, uninterrupted {whole[80]:.6f}")
print("steps whose loss differs in any bit:", int((losses != whole).sum()), "of", len(whole))

# %% [markdown]
# Not close: equal. The order of the samples is a function of seed and step, so nothing about it had to be saved but one
# number.
#
# ## How often?
# A checkpoint costs time, a lost step costs time. If saving takes `s` seconds and an interruption comes every `M` seconds,
# the best distance is about `sqrt(2 s M)` (Young 1974). `trainer.checkpoint_every=auto` measures both.

# %%
for hours in (1, 6, 24):
    print(f"5 s to save, interrupted every {hours:2} h: save every {(2 * 5 * hours * 3600) ** 0.5 / 60:.0f} minutes")

# %% [markdown]
# ## Question
# A run saves every 50 steps and is killed right after step 130. How many steps does it compute twice?

# %%
answer = None
check(10, answer)

# %% [markdown]
# ## Read next
# - [Durable runs](../docs/durable-runs.md), [checkpoints](../docs/checkpoints.md), and the concepts [attempt](../docs/concepts/attempt.md)
#   and [generation](../docs/concepts/generation.md).
# - You have done the ten lessons. [Start a real run](../docs/launch.md), or [bring your own model](../docs/plug-a-model.md).
