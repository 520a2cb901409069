"""Tensor-parallel plans: for each pattern of module names, how those modules are sharded.

The decoder's plan also uses sequence parallelism: outside attention and MLP each rank holds a part of the sequence, so
that norms and dropout are not computed twice. Hugging Face's own plans shard layers only. The styles:

columns     a linear layer sharded by outputs; takes the whole sequence, returns this rank's outputs
rows        a linear layer sharded by inputs; takes this rank's inputs, returns the sum, scattered over the sequence
vocabulary  an embedding sharded by rows; takes and returns whole sequences
logits      the last linear layer sharded by outputs; takes a part of the sequence, returns sharded logits
sequence    a norm over features, with replicated weights, on this rank's part of the sequence
heads       a norm within each head, on this rank's heads
rows whole, columns whole   as above, but the output is replicated on every rank
gather      the module's first input is gathered to the whole sequence
divide      the module's output is scattered: each rank keeps its part of the sequence
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
    # Rows of qkv are ordered by key-value group, so a contiguous split gives each rank whole groups.
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
    """Return the tensor-parallel plan of a model, or None if it cannot be sharded.

    A `tensor_plan` attribute of the model comes first, then the plan of the wrapped Hugging Face model or the decoder.
    """
    own: Any = getattr(model, "tensor_plan", None)
    if own is not None:
        return own
    if isinstance(model, HFCausalLM):
        theirs: dict[str, str] = getattr(model.model, "tp_plan", None) or {}
        known = set(theirs.values()) <= set(HUGGING_FACE)
        return {f"model.{name}": HUGGING_FACE[word] for name, word in theirs.items()} if theirs and known else None
    return DECODER if isinstance(model, Decoder) else None


def check_tensor_degree(model: nn.Module, degree: int) -> None:
    """Raise ConfigError if the heads or MLP of a Hugging Face model do not divide evenly among `degree` ranks.

    The built-in decoder is checked with its configuration instead.
    """
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
