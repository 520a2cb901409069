# %% [markdown]
# # Look at a sweep
# A search for the learning rate with pretended dollars, on this machine, and what it found. At most nine minutes: $0.15 at
# $1 an hour. A slow machine needs more, and the error says how much.

# %%
import pandas

import skytrain

base = skytrain.compose(
    "recipe=quickstart",
    "trainer.steps=40",
    "trainer.validate_every=40",
    "trainer.sample_every=null",
    "tune.strategy=grid",
    "tune.horizons=[0.5]",
    "tune.shortest=5",
    "budget.usd=0.15",
    "tune.usd_per_hour=1",
    "tune.name=mine",
)
skytrain.prepare(base, quiet=True)
tuned = skytrain.tune(base, quiet=True)

# %% [markdown]
# ## The trials

# %%
trials = pandas.DataFrame(
    {"rung": each.trial.rung, "rate": each.trial.rate, "loss": each.loss, "usd": each.usd} for each in tuned.history
)
print(trials.sort_values(["rung", "rate"]).to_string())

# %% [markdown]
# ## The answer

# %%
print("\n".join(tuned.conclusion.lines()))
print("final run:", tuned.final_overrides)
print("page with plots:", f"{tuned.url}/report/report.html")
assert len(trials) >= 1
assert tuned.conclusion.answer.rate > 0
