"""How each part of a model may be divided among tensor-parallel ranks: a pattern of module names, and a word for it.

In the decoder's plan the sequence is divided between the parts named, so that norms and dropout are not done twice. Hugging
Face's own plans divide layers only. The words:

columns     a linear layer by its outputs; takes the whole sequence, gives this rank's outputs
rows        a linear layer by its inputs; takes this rank's, gives the sum as this rank's part of the sequence
vocabulary  an embedding by its rows; takes and gives whole sequences
logits      the last linear layer by its outputs; takes a part of the sequence, gives logits that stay divided
sequence    a norm over features: works on this rank's part of the sequence, with all of its own weights
heads       a norm within each head: works on this rank's heads
rows whole, columns whole   as above, but what they give is whole on every rank
gather      the module's first input becomes the whole sequence
divide      the module's output becomes this rank's part of the sequence
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..config import ConfigError
from .decoder import Decoder
from .hf_causal_lm import HFCausalLM

TensorPlan = dict[str, str]

DECODER: TensorPlan = {
    "embedding.tokens": "vocabulary",
    "embedding": "divide",
    "blocks.*.attention_norm": "sequence",
    "blocks.*.attention": "gather",
    # Rows of qkv are ordered by key-value group, so that a plain split gives each rank whole groups.
    "blocks.*.attention.qkv": "columns",
    "blocks.*.attention.q_norm": "heads",
    "blocks.*.attention.k_norm": "heads",
    "blocks.*.attention.out": "rows",
    "blocks.*.attention_post_norm": "sequence",
    "blocks.*.mlp_norm": "sequence",
    "blocks.*.mlp": "gather",
    "blocks.*.mlp.gate": "columns",
    "blocks.*.mlp.up": "columns",
    "blocks.*.mlp.down": "rows",
    "blocks.*.mlp_post_norm": "sequence",
    "head.norm": "sequence",
    "head.projection": "logits",
}


HUGGING_FACE = {
    "colwise": "columns",
    "rowwise": "rows whole",
    "colwise_gather_output": "columns whole",
    "embedding_rowwise": "vocabulary",
    "replicated_with_grad_allreduce": "heads",  # norms of queries and keys
}


def tensor_plan(model: nn.Module) -> TensorPlan | None:
    """The model's own `tensor_plan`, the decoder's, or that of the Hugging Face model inside; None for one that cannot be divided."""
    own: Any = getattr(model, "tensor_plan", None)
    if own is not None:
        return own
    if isinstance(model, HFCausalLM):
        theirs: dict[str, str] = getattr(model.model, "tp_plan", None) or {}
        known = set(theirs.values()) <= set(HUGGING_FACE)
        return {f"model.{name}": HUGGING_FACE[word] for name, word in theirs.items()} if theirs and known else None
    return DECODER if isinstance(model, Decoder) else None


def check_tensor_degree(model: nn.Module, degree: int) -> None:
    """Raise ConfigError where a Hugging Face model's heads do not divide among the ranks; the decoder's are checked as configured."""
    if not isinstance(model, HFCausalLM):
        return
    theirs: Any = model.model.config
    heads = getattr(theirs, "num_attention_heads", None)
    counts = {
        "attention heads": heads,
        "key-value heads": getattr(theirs, "num_key_value_heads", None) or heads,
        "columns of the MLP": getattr(theirs, "intermediate_size", None),
    }
    for what, count in counts.items():
        if isinstance(count, int) and count % degree:
            raise ConfigError(
                "parallel.tensor",
                f"the {count} {what} of {model.config.name} do not divide among {degree} ranks",
                hint="choose a divisor, or parallel=fsdp, which divides any model",
            )
