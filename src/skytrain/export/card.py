"""The model card of an export: README.md with what was trained, on what, how long and for how much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..config import BatchSizes

LOSSES = {"train/loss": "training loss", "val/loss": "validation loss"}


@dataclass(frozen=True)
class TrainingFacts:
    """The run as a model card describes it."""

    run: str
    step: int
    total_steps: int
    batches: BatchSizes  # tokens of each step
    sequence_length: int
    optimizer: str
    learning_rate: float
    precision: str
    seed: int
    data: Mapping[str, int | None]  # each training split, and its tokens if its manifest says how many
    tokenizer: str
    metrics: Mapping[str, float] = field(default_factory=dict)  # at the exported step
    device: str = ""
    ranks: int = 1
    train_seconds: float | None = None
    started_from: str | None = None  # weights of another model

    @property
    def tokens(self) -> int:
        return self.batches.before(self.step)


@dataclass(frozen=True)
class ModelFacts:
    """The model as a model card describes it."""

    name: str
    family: str
    parameters: int
    max_length: int
    dtype: str


def model_card(model: ModelFacts, training: TrainingFacts | None, merged: str | None = None) -> str:
    """Return the text of README.md, with the metadata that the Hugging Face hub reads at its top.

    `training` is None for a model without a run. `merged` says what a merged model was made of.
    """
    metadata: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["skytrain", model.family, *(["merge"] if merged else [])],
    }
    if training and training.started_from and _on_hub(training.started_from):
        metadata["base_model"] = training.started_from.partition("@")[0]
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in metadata.items())
    rows = [
        ("architecture", model.family),
        ("parameters", f"{model.parameters:,}"),
        ("context", f"{model.max_length:,} tokens"),
        ("weights", model.dtype),
        *(_training_rows(training) if training else []),
    ]
    table = "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])
    return f"""---
{head}
---

# {model.name}

{f"Merged by Skytrain {__version__}: {merged}." if merged else _first_sentence(training)}

{table}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH-OR-NAME")
model = AutoModelForCausalLM.from_pretrained("PATH-OR-NAME")
tokens = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=64)[0]))
```
"""


def _first_sentence(training: TrainingFacts | None) -> str:
    if training is None:
        return f"Exported by Skytrain {__version__}."
    start = f"from the weights of {training.started_from}" if training.started_from else "from random weights"
    return (
        f"Trained by Skytrain {__version__} {start}, on {training.tokens:,} tokens "
        f"(run {training.run}, step {training.step:,} of {training.total_steps:,})."
    )


def _training_rows(training: TrainingFacts) -> list[tuple[str, str]]:
    data = "; ".join(f"{name} ({tokens:,} tokens)" if tokens else name for name, tokens in training.data.items())
    rows = [
        ("data", data),
        ("tokenizer", training.tokenizer),
        (
            "tokens trained on",
            f"{training.tokens:,} ({', then '.join(f'{size:,}' for size in training.batches.sizes(training.step))} per step)",
        ),
        ("sequence length", f"{training.sequence_length:,}"),
        ("optimizer", f"{training.optimizer}, peak learning rate {training.learning_rate:g}"),
        ("precision", training.precision),
        ("seed", str(training.seed)),
        *((label, f"{training.metrics[key]:.4f}") for key, label in LOSSES.items() if key in training.metrics),
    ]
    if training.device:
        rows.append(("hardware", f"{training.ranks} x {training.device}"))
    if training.train_seconds:
        rows.append(("training time", f"{training.train_seconds / 3600:.2f} hours"))
    usd = training.metrics.get("cost/usd")
    rows.append(("cost", f"${usd:,.2f}" if usd is not None else "not metered"))
    return rows


def _on_hub(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))
