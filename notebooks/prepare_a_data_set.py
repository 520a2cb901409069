# %% [markdown]
# # Prepare a data set
# From text files to token shards, and a look at what was kept and what was removed. Runs offline in a minute.

# %%
from pathlib import Path

import skytrain

# %% [markdown]
# ## Some text
# Four documents in two files: one is a duplicate, one is too short. A separator is a line of its own.

# %%
Path("texts").mkdir(exist_ok=True)
story = "The train left the station before the sun rose over the hills. " * 20
Path("texts/a.txt").write_text(f"{story}\n<|endoftext|>\n{story}\n<|endoftext|>\nToo short.\n")
Path("texts/b.txt").write_text("A model reads many books, and forgets most of them again. " * 30)

# %% [markdown]
# ## Prepare
# `compose` checks the settings once; later words may change them.

# %%
settings = skytrain.compose(
    "data=text",
    "data.source.paths='texts/*.txt'",
    "data.source.separator='<|endoftext|>'",
    "data.min_chars=100",
    "data.validation_fraction=0",
    "tokenizer=bytes",
)
prepared = skytrain.prepare(settings)
print(prepared.folder)
print(f"{prepared.train.documents} documents, {prepared.train.tokens} tokens")

# %% [markdown]
# The same call again finds the work done. Another rule is another *version*, beside the first.

# %%
other = skytrain.prepare(settings, "data.min_chars=1", quiet=True)
print(other.folder != prepared.folder, other.train.documents)
assert prepared.train.documents == 2
assert other.train.documents == 3

# %% [markdown]
# ## What was removed
# The report of the corpus counts what each rule removed, with examples.

# %%
import json

version = prepared.folder.split("/")[2]
report = json.loads(Path(f"skytrain-store/corpora/text/{version}/report.json").read_text())
print(json.dumps(report, indent=1)[:800])
