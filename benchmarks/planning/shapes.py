"""The decoders on which the planner is checked on a GPU: the configuration groups, with shorter position tables."""

from __future__ import annotations

from dataclasses import replace

from skytrain.config import DecoderConfig, compose
from skytrain.planning.mesh import Mesh

SINGLE = Mesh()
OPTIMIZER = compose(["optimizer.lr=1e-4"]).config.optimizer
GPT2 = DecoderConfig(
    name="gpt2-124m", family="gpt2", layers=12, width=768, heads=12, kv_heads=None, head_size=None, mlp_width=None,
    vocab_size=50257, pad_vocab_to=128, max_length=4096, dropout=0.0, tied_head=True, norm="layernorm", norm_eps=1e-5,
    post_norms=False, qk_norm=False, activation="gelu_tanh", gated_mlp=False, bias="all", positions="learned",
    rope_theta=None, rope_scaling=None, window=None, window_every=1, attention_scale=None, attention_softcap=None,
    logit_softcap=None, scale_embedding=False, weights=None, parametrization="standard", base_width=None, base_layers=None,
    pre_norms=True, qk_norm_scope="head", full_every=None, window_theta=None, rope_except=None, experts=None,
    latent=None, sinks=False, activation_clamp=None, activation_gain=1.0,
)  # fmt: skip
MEDIUM = replace(GPT2, name="gpt2-355m", layers=24, width=1024, heads=16)
LLAMA = replace(
    GPT2, name="llama-3.2-1b", family="llama", layers=16, width=2048, heads=32, kv_heads=8, mlp_width=8192, vocab_size=128256,
    norm="rmsnorm", activation="silu", gated_mlp=True, bias="none", positions="rope", rope_theta=5e5,
)  # fmt: skip
TINY = replace(GPT2, name="tiny", layers=2, width=64, heads=4, vocab_size=1000)
MODELS = {model.name: model for model in (GPT2, MEDIUM, LLAMA, TINY)}
