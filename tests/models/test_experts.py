"""A mixture of experts: routing, grouped products against a loop over experts, balance, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from skytrain.config import ConfigError, DecoderConfig, ExpertsConfig, Mesh, Setup, SkytrainError, check_setup, compose
from skytrain.models import MixtureOfExperts, build_model, hf_config
from skytrain.models.experts import Routing, count_load
from skytrain.models.hf_form import read_hf_config
from skytrain.models.sizes import size_config
from skytrain.planning import decoder_flops_per_token, decoder_size
from skytrain.training.optimizers.groups import BaseSettings, hidden_matrices, parameter_groups

PLAIN = ExpertsConfig(
    count=6,
    per_token=2,
    width=24,
    shared_width=None,
    dense_layers=0,
    scores="softmax",
    normalize=True,
    scale=1.0,
    groups=1,
    groups_per_token=1,
    bias=False,
    bias_rate=0.0,
    balance_loss=0.0,
    z_loss=0.0,
)
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not normalized": {"normalize": False},
    "one expert": {"per_token": 1},
    "all experts": {"per_token": 6},
    "sigmoid, scaled, shared": {"scores": "sigmoid", "scale": 2.5, "shared_width": 12},
    "groups and bias": {"scores": "sigmoid", "groups": 3, "groups_per_token": 2, "bias": True, "per_token": 3},
}


def small(decoder_config: Any, **changes: Any) -> DecoderConfig:
    return decoder_config("mixtral-tiny", kv_heads=2, mlp_width=40, experts=dataclasses.replace(PLAIN, **changes))


def mixture_of(config: DecoderConfig) -> MixtureOfExperts:
    mixture = build_model(config, seed=1).blocks["0"].mixture
    assert isinstance(mixture, MixtureOfExperts)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return mixture


def loop_over_experts(mixture: MixtureOfExperts, x_btd: Tensor, routing: Routing) -> Tensor:
    """The reference: each expert in turn, over the tokens that chose it."""
    x_nd = x_btd.flatten(0, 1)
    y_nd = torch.zeros_like(x_nd)
    experts = mixture.experts
    for expert in range(len(experts.up.weight)):
        token, choice = torch.where(routing.experts_nk == expert)
        gate, up, down = (each.weight[expert] for each in (experts.gate, experts.up, experts.down))
        found = (F.silu(x_nd[token] @ gate.T) * (x_nd[token] @ up.T)) @ down.T
        y_nd = y_nd.index_add(0, token, found * routing.weights_nk[token, choice, None])
    y_btd = y_nd.view_as(x_btd)
    return y_btd if mixture.shared is None else y_btd + mixture.shared(x_btd)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_grouped_products_give_outputs_and_gradients_of_a_loop_over_experts(decoder_config, changes):
    mixture = mixture_of(small(decoder_config, **changes)).eval()
    x = torch.randn(3, 11, 48, generator=torch.Generator().manual_seed(2)).requires_grad_()
    pull = torch.randn(3, 11, 48, generator=torch.Generator().manual_seed(3))
    trained = [parameter for parameter in mixture.parameters() if parameter.requires_grad]
    found = mixture(x)
    expected = loop_over_experts(mixture, x, mixture.router(x))
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad((y * pull).sum(), [x, *trained]) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_tokens_output_does_not_depend_on_the_other_tokens(decoder_config):
    mixture = mixture_of(small(decoder_config)).eval()
    x = torch.randn(1, 40, 48, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(mixture(x)[:, :7], mixture(x[:, :7]), rtol=1e-5, atol=1e-5)


def test_an_expert_that_no_token_chose_gets_a_gradient_of_zero(decoder_config):
    mixture = mixture_of(small(decoder_config, per_token=1)).eval()
    x = torch.randn(1, 1, 48).expand(2, 5, 48)  # all tokens are alike
    mixture(x).square().sum().backward()
    used = mixture.experts.up.weight.grad.abs().amax((1, 2)) > 0
    assert int(used.sum()) == 1


def test_routers_count_each_tokens_experts_in_training_only(decoder_config):
    mixture = mixture_of(small(decoder_config))
    x = torch.randn(2, 9, 48)
    mixture.eval()(x)
    assert mixture.router.take_load() is None
    mixture.train()(x)
    mixture(x)
    load = mixture.router.take_load()
    assert int(load.sum()) == 2 * 2 * 9 * 2 and mixture.router.take_load() is None
    chosen = mixture.eval().router(x).experts_nk
    assert torch.equal(load, 2 * count_load(chosen.flatten()[None], 6)[0])


def test_the_balance_loss_is_that_of_transformers_for_each_sequence(decoder_config):
    mixture = mixture_of(small(decoder_config, balance_loss=0.3)).train()
    x = torch.randn(4, 17, 48)
    _, loss = mixture(x)
    logits = F.linear(x, mixture.router.weight)
    expected = [load_balancing_loss_func((each,), 6, 2) for each in logits]
    torch.testing.assert_close(loss, 0.3 * torch.stack(expected).mean())
    assert torch.autograd.grad(loss, mixture.router.weight)[0].abs().max() > 0


def test_the_z_loss_is_the_mean_squared_logarithm_of_the_softmaxs_sum(decoder_config):
    mixture = mixture_of(small(decoder_config, z_loss=0.5)).train()
    x = torch.randn(2, 5, 48)
    _, loss = mixture(x)
    torch.testing.assert_close(loss, 0.5 * F.linear(x, mixture.router.weight).logsumexp(-1).square().mean())


def test_a_bias_changes_who_is_chosen_but_not_the_weights(decoder_config):
    router = mixture_of(small(decoder_config, bias=True, normalize=False)).router.eval()
    x = torch.randn(1, 30, 48)
    with torch.no_grad():
        router.load_bias.zero_()
        scores = F.linear(x, router.weight).softmax(-1)[0]
        router.load_bias[4] = 10.0
    routing = router(x)
    assert bool((routing.experts_nk == 4).any(1).all())
    torch.testing.assert_close(routing.weights_nk, scores.gather(1, routing.experts_nk))
    assert not router.load_bias.requires_grad


def test_dense_layers_come_first(decoder_config):
    model = build_model(small(decoder_config, dense_layers=1), seed=0)
    assert model.blocks["0"].mixture is None and model.blocks["1"].mlp is None


@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("changes", [{}, {"shared_width": 12, "dense_layers": 1, "bias": True}])
def test_the_planner_counts_total_and_active_parameters(decoder_config, changes, bias):
    config = dataclasses.replace(small(decoder_config, **changes), bias=bias)
    model = build_model(config, seed=0)
    size = decoder_size(config)
    padding = (config.padded_vocab - config.vocab_size) * config.width * 2  # of embedding and head
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters()) - padding
    idle = (6 - 2) * (config.layers - config.experts.dense_layers)  # experts
    matrices = 3 * 48 * 24
    assert size.active_parameters == size.parameters - idle * (matrices + (2 * 24 + 48 if bias == "all" else 0))
    whole = dataclasses.replace(config, experts=dataclasses.replace(config.experts, per_token=6))
    # Biases are added, not multiplied.
    assert decoder_flops_per_token(whole, 32) - decoder_flops_per_token(config, 32) == 6 * idle * matrices


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # as their authors state them: 46.7B and 12.9B, 30.5B and 3.3B, 6.9B and 1.3B
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("olmoe-1b-7b", 6_919_161_856, 1_282_017_280),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472),  # 671B and 37B
        ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),  # 20.9B, and 3.6B without the embedding
        ("moonlight-16b-a3b", 15_960_110_208, 2_914_776_192),  # 16B and 3B
    ],
)
def test_published_models_have_their_published_sizes(name, total, active):
    size = decoder_size(size_config(name))
    assert (size.parameters, size.active_parameters) == (total, active)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.experts.per_token=9"], r"model.experts.per_token: 9 experts for each token, but there are 8.*\n.*=8"),
        (["model.experts.dense_layers=4"], r"model.experts.dense_layers: 4 of the 4 layers are dense"),
        (["model.experts.groups=3"], r"model.experts.groups: 3 groups do not divide the 8 experts.*\n.*groups="),
        (["model.experts.groups=8"], r"model.experts.per_token: 2 experts for each token, but its groups have 1"),
        (
            ["model.experts.width=100"],
            r"model.experts.width: 100: grouped products .*multiples of 8 .*\n.*=96 or .*=104",
        ),
        (
            ["model.width=252"],
            r"model.width: 252: grouped products of experts .*\n.*try model.width=248 or model.width=256",
        ),
        (["model.experts.bias_rate=0.1"], r"model.experts.bias_rate: is only used with model.experts.bias=true"),
        (
            ["parallel=ep-fsdp", "parallel.expert=3"],
            r"parallel.expert: 8 experts do not divide among 3 ranks; try .*=2",
        ),
        (  # 3 would be nearer, but does not divide the ranks that 4 does
            ["parallel=ep-fsdp", "model.experts.count=6", "parallel.expert=4"],
            r"parallel.expert: 6 experts do not divide among 4 ranks; try parallel.expert=2",
        ),
        (
            ["parallel=ep-fsdp", "trainer.activation_checkpointing=selective"],
            r"activation_checkpointing: 'selective' does not go with parallel.expert=2.*\n.*=full, or parallel.expert=1",
        ),
        (["parallel=deepspeed-zero3"], r"DeepSpeed does not gather the experts .*\n.*parallel=ep-fsdp"),
        (["parallel=pp-tp-fsdp"], r"parallel.tensor: parallel.tensor=2: in a pipeline.*\n.*parallel=pp-ep-fsdp"),
        (
            ["trainer.fused=on", "trainer.precision=bf16-mixed", "parallel=ep-fsdp"],
            r"trainer.fused: 'on': the fused path does not serve experts that are divided among ranks",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_composition_with_what_would(settings, message):
    with pytest.raises(ConfigError, match=message):
        compose(["model=mixtral-tiny", "trainer.precision=bf16-mixed", *settings])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.kv_heads=2"], r"model.kv_heads: 2 does not go with latent attention.*\n.*try model.kv_heads=null"),
        (["model.bias=all"], r"model.bias: all does not go with latent attention.*\n.*try model.bias=none"),
        (["model.qk_norm=true"], r"model.qk_norm: True does not go with latent attention.*\n.*=false"),
        (["model.latent.rope_size=7"], r"model.latent.rope_size: 7 is odd"),
        (["model.latent.value_size=64"], r"model.latent.value_size: 64 is more than the 48 of a key.*\n.*=48"),
        (
            ["trainer.fused=on", "trainer.precision=bf16-mixed"],
            r"trainer.fused: 'on': the fused path does not serve latent attention",
        ),
    ],
)
def test_settings_that_latent_attention_has_not_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        compose(["model=deepseek-tiny", *settings])


def test_sinks_are_refused_where_ranks_share_sequences():
    with pytest.raises(ConfigError, match=r"parallel.context: .*does not compute sinks.*\n.*parallel=ep-fsdp"):
        compose(["model=gpt-oss-tiny", "parallel=cp", "parallel.context_method=ulysses"])


def test_a_sink_takes_attention_from_all_tokens(decoder_config):
    model = build_model(decoder_config("gpt-oss-tiny", kv_heads=2, head_size=16), seed=1).eval()
    tokens = torch.randint(0, 101, (1, 12))
    with torch.no_grad():
        before = model(tokens)
        for block in model.blocks.values():
            block.attention.sinks.bias.fill_(-1e9)
        without = model(tokens)
        for block in model.blocks.values():
            block.attention.sinks.bias.fill_(1e9)
        nothing = [block.attention(torch.randn(1, 12, 48), None, None) for block in model.blocks.values()]
    assert (before - without)[..., :101].abs().max() > 1e-5
    bias = [block.attention.out.bias.expand(1, 12, 48) for block in model.blocks.values()]
    torch.testing.assert_close(nothing, bias, atol=1e-6, rtol=0)


def test_expert_biases_are_vectors_to_optimizers(decoder_config):
    model = build_model(decoder_config("gpt-oss-tiny", kv_heads=2, head_size=16), seed=1)
    assert not [name for name in hidden_matrices(model) if name.endswith("bias")]
    groups = parameter_groups(model, BaseSettings(lr=1e-3, weight_decay=0.1))
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    experts = model.blocks["0"].mixture.experts
    assert id(experts.up.weight) in decayed and id(experts.up.bias) not in decayed


def test_quantized_weights_are_refused_with_what_to_do(decoder_config):
    data = {**hf_config(size_config("gpt-oss-20b")), "quantization_config": {"quant_method": "mxfp4"}}
    with pytest.raises(SkytrainError, match=r"quantized by mxfp4.*bfloat16"):
        read_hf_config(data, name="gpt-oss-20b", pad_vocab_to=1)


def test_expert_parallelism_needs_experts():
    with pytest.raises(ConfigError, match=r"parallel.expert: 2: model=llama-tiny has no experts to divide"):
        compose(["model=llama-tiny", "parallel=ep-fsdp"])


def test_expert_ranks_that_do_not_divide_those_of_the_run_are_refused_with_a_number_that_does():
    words = ["model=mixtral-tiny", "parallel=ep-fsdp", "parallel.expert=4", "trainer.micro_batch=1"]
    config = compose([*words, "trainer.batch_tokens=12288"]).config
    refusal = r"the 6 ranks that share the state .* do not divide into groups of 4; try parallel.expert=2"
    with pytest.raises(ConfigError, match=refusal):
        check_setup(Setup(config, Mesh(shard=6, expert=4), processes=6))
    check_setup(Setup(config, Mesh(shard=6, expert=2), processes=6))


def test_a_huge_number_of_experts_that_does_not_divide_is_refused_with_one_that_does():
    words = ["model=mixtral-tiny", "parallel=ep-fsdp", "model.experts.count=100000000000", "parallel.expert=3"]
    with pytest.raises(ConfigError, match=r"100000000000 experts do not divide among 3 ranks; try parallel.expert=2"):
        compose(words)
