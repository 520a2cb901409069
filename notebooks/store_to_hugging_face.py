# %% [markdown]
# # From the store to Hugging Face
# Train a small model, export it, and use it with transformers, without Skytrain. Needs `pip install 'skytrain[export]'`.

# %%
import torch

import skytrain

base = skytrain.compose("recipe=quickstart", "trainer.steps=30", "trainer.validate_every=30", "run=small")
skytrain.prepare(base, quiet=True)
run = skytrain.train(base, quiet=True)
print(run.checkpoint())

# %% [markdown]
# ## Export
# Weights as safetensors, `config.json`, the tokenizer and a model card with its lineage.

# %%
folder = run.export("small-model")
for path in sorted(folder.iterdir()):
    print(f"{path.stat().st_size:>10,} {path.name}")

# %% [markdown]
# ## Use it elsewhere
# transformers reads the folder. Its loss is ours, to the rounding of bf16.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
tokens = tokenizer("Return the value of the item.", return_tensors="pt").input_ids
with torch.no_grad():
    logits = theirs(tokens).logits
    ours = run.model()(tokens)[..., : logits.size(-1)]
print("largest difference of log-probabilities:", float((logits.log_softmax(-1) - ours.log_softmax(-1)).abs().max()))
assert torch.allclose(logits.log_softmax(-1), ours.log_softmax(-1), atol=0.05)

# %% [markdown]
# `skytrain export --from small --to hub OWNER/NAME` uploads it.
