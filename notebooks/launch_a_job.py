# %% [markdown]
# # Launch a job, rehearsed
# Plan a run, look at every request that a launch would send, and train the same thing here at a small size. Rents
# nothing, and needs no account.

# %%
import subprocess
import sys

# %% [markdown]
# ## Plan
# The offers as a table; the plan is written for `launch`.
# %%
import pandas

import skytrain

planned = skytrain.plan("recipe=gpt2-124m-pile", "budget.usd=150", region="us-east-1", market="spot", out="plan.json")
table = pandas.DataFrame(planned.rows())[["instance_type", "nodes", "mesh", "tokens_per_s", "hours", "usd"]]
print(table.head(8).to_string())
print(planned.why)

# %% [markdown]
# ## Every request, before it is sent
# Without an account, its names are placeholders.

# %%
command = [sys.executable, "-m", "skytrain", "launch", "train", "--plan", "plan.json", "cloud=ec2", "--dry-run"]
done = subprocess.run(command, capture_output=True, text=True, check=True)
print("\n".join((done.stderr + done.stdout).splitlines()[:25]))
assert "kill time" in done.stderr + done.stdout

# %% [markdown]
# ## The same code, here
# Two processes stand for the machines. What runs is what a launched machine runs.

# %%
base = skytrain.compose("recipe=quickstart", "trainer.steps=6", "trainer.micro_batch=4", "trainer.log_every=1")
skytrain.prepare(base, quiet=True)
run = skytrain.train(base, "run=rehearsal", "parallel=ddp", processes=2, quiet=True)
print(run.status().state, run.metrics()["train/loss"].tolist())
