"""Comparing the decoder with Hugging Face's model of the same family and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skytrain.config import DecoderConfig
from skytrain.models import Decoder
from skytrain.models.hf_config import hf_config
from skytrain.models.hf_weights import state_from_hf


def hugging_face_twin(config: DecoderConfig, seed: int = 0, **settings: Any) -> tuple[Decoder, Any]:
    """A random Hugging Face model, and our decoder with its weights. Larger than at initialisation, so that nothing hides in small numbers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    written = {key: value for key, value in hf_config(config).items() if value is not None}
    theirs_config = AutoConfig.for_model(**{**written, **settings})
    theirs = AutoModelForCausalLM.from_config(theirs_config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in theirs.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0.0, 0.1, generator=generator)
        else:
            centre = 1.0 if "norm" in name.lower() or ".ln_" in name else 0.0
            parameter.data.normal_(centre, 0.1, generator=generator)
    ours = Decoder(config).eval()
    ours.load_state_dict(state_from_hf(config, dict(theirs.named_parameters())), strict=False)
    return ours, theirs


def relative(difference: Tensor, reference: Tensor) -> float:
    return float(difference.norm() / reference.norm())
