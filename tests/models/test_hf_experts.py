"""Mixtures of experts through model=hf: the routers' loss and the FLOPs of the experts that a token goes through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from skytrain.config import HFModelConfig
from skytrain.models import HFCausalLM, build_model, flops_per_token, lm_loss

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "pad_token_id": None,
    "router_aux_loss_coef": 0.3,
}
# Experts of 24 and the dense parts of each architecture.
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24},
}


def folder_of(family: str, tmp_path, **changes: Any) -> HFModelConfig:
    AutoConfig.for_model(family, **{**SIZES, **EXPERTS[family], **changes}).save_pretrained(tmp_path)
    return HFModelConfig(
        name=str(tmp_path),
        family="hf",
        weights="random",
        revision=None,
        trust_remote_code=False,
        vocab_size=96,
        max_length=48,
    )


@pytest.mark.parametrize("family", EXPERTS)
def test_the_routers_loss_is_transformers_own(family, tmp_path):
    ours = build_model(folder_of(family, tmp_path), seed=1)
    assert isinstance(ours, HFCausalLM)
    tokens = torch.randint(96, (2, 17), generator=torch.Generator().manual_seed(0))
    ours.train()
    loss = lm_loss(ours, tokens[:, :-1], tokens[:, 1:])
    loss.backward()

    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path), dtype=torch.float32)
    theirs.load_state_dict(ours.model.state_dict())
    output = theirs.train()(tokens[:, :-1], output_router_logits=True)
    expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, expected + 0.3 * output.aux_loss)
    # transformers shifts the labels itself, and leaves the last position of a sequence without one.
    whole = theirs(tokens, labels=tokens, output_router_logits=True)
    plain = theirs(tokens, labels=tokens)
    torch.testing.assert_close(whole.loss - plain.loss, 0.3 * whole.aux_loss)
    (expected + 0.3 * output.aux_loss).backward()
    for (name, mine), their in zip(ours.model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, their.grad, msg=name)

    with torch.no_grad():
        evaluated = lm_loss(ours.eval(), tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(evaluated, expected)


@pytest.mark.parametrize("family", EXPERTS)
def test_only_the_experts_that_a_token_goes_through_count_as_flops(family, tmp_path):
    """Two of eight experts cost what two experts in all cost, but for the router's six more outputs."""
    eight = build_model(folder_of(family, tmp_path / "eight"), seed=1)
    fewer = {name: 2 for name in EXPERTS[family] if name in ("num_experts", "num_local_experts")}
    two = build_model(folder_of(family, tmp_path / "two", **fewer), seed=1)
    routers = 2 * 6 * 32
    assert flops_per_token(eight, 40) - flops_per_token(two, 40) == 6 * routers
