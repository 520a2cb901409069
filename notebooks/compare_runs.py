# %% [markdown]
# # Compare runs
# Two runs that differ in one setting: their settings, curves and text side by side.

# %%
import pandas

import skytrain

base = skytrain.compose(
    "recipe=quickstart",
    "trainer.steps=30",
    "trainer.validate_every=15",
    "trainer.log_every=5",
    "trainer.sample_every=null",
)
skytrain.prepare(base, quiet=True)
fast = skytrain.train(base, "optimizer.lr=5e-3", "run=fast", quiet=True)
slow = skytrain.train(base, "optimizer.lr=5e-4", "run=slow", quiet=True)

# %% [markdown]
# ## What differs?
# A record has every setting. Only what differs is interesting.

# %%


def flat(tree: dict, prefix: str = "") -> dict:
    """Return nested settings as dotted keys."""
    found = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


first, second = flat(fast.record.config), flat(slow.record.config)
print({name: (first[name], second[name]) for name in first if first[name] != second[name]})

# %% [markdown]
# ## Curves, aligned by step

# %%
losses = pandas.DataFrame({run.name: run.metrics()["train/loss"] for run in (fast, slow)}).dropna()
losses["difference"] = losses["slow"] - losses["fast"]
print(losses.to_string())

# %% [markdown]
# ## Held-out text, and a sample

# %%
for run in (fast, slow):
    report = run.evaluate(tokens=4096)
    print(f"{run.name}: {report.bits_per_byte:.4f} bits per byte; {run.generate('Return the', max_tokens=12)!r}")
assert fast.evaluate(tokens=4096).loss < slow.evaluate(tokens=4096).loss

# %% [markdown]
# `skytrain report RUN` makes a page of a run.
