"""The fast path against the plain decoder, and each kernel against its reference, in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys

import pytest
import torch

from skytrain.config import compose, fused_model_problem
from skytrain.models import Kernels, LossSettings, build_model, fused_loss
from skytrain.models.kernels import router_logits
from skytrain.models.kernels.sums import sum_rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# Each shape that the path serves: the family, and what it adds to the ones before it.
SHAPES = {
    "gpt2": ["model=gpt2-tiny", "model.width=48", "model.heads=3"],
    "llama": ["model=llama-tiny", "model.width=48", "model.heads=3", "model.kv_heads=3", "model.head_size=16"],
    "qwen2": ["model=qwen2.5-0.5b", "model.width=48", "model.heads=4", "model.kv_heads=2", "model.head_size=8"],
    "qwen3": ["model=qwen3-0.6b", "model.width=48", "model.heads=6", "model.kv_heads=2", "model.head_size=16"],
    "experts": [
        *("model=qwen3-30b-a3b", "model.width=48", "model.heads=6", "model.kv_heads=2", "model.head_size=16"),
        *("model.experts.count=5", "model.experts.per_token=2", "model.experts.width=40", "model.experts.z_loss=0.01"),
    ],
    "shared expert": [
        *("model=qwen3-30b-a3b", "model.width=32", "model.heads=2", "model.kv_heads=1", "model.head_size=16"),
        *(
            "model.experts.count=4",
            "model.experts.per_token=2",
            "model.experts.width=24",
            "model.experts.scores=sigmoid",
        ),
        *("model.experts.shared_width=16", "model.experts.dense_layers=1", "model.experts.bias=true"),
    ],
    "olmo2": ["model=olmo-2-1b", "model.width=48", "model.heads=3", "model.kv_heads=3", "model.head_size=16"],
    "olmo2, one group": [
        *("model=olmo-2-1b", "model.width=48", "model.heads=3", "model.kv_heads=1", "model.head_size=16"),
    ],
    "gemma2": [
        *("model=gemma-2-2b", "model.width=48", "model.heads=4", "model.kv_heads=2", "model.head_size=16"),
        *("model.window=5", "model.attention_softcap=2", "model.logit_softcap=1.5", "model.attention_scale=0.3"),
    ],
    "gemma3": [
        *("model=gemma-3-1b", "model.width=48", "model.heads=4", "model.kv_heads=1", "model.head_size=16"),
        *("model.window=5", "model.full_every=2"),
    ],
    "smollm3": [
        *("model=smollm3-3b", "model.width=48", "model.heads=4", "model.kv_heads=2", "model.head_size=16"),
        "model.rope_except=2",
    ],
    "untied": ["model=qwen3-0.6b", "model.width=32", "model.heads=2", "model.kv_heads=1", "model.head_size=32"],
}
MODERN = ["model.mlp_width=56", "model.vocab_size=257", "model.pad_vocab_to=64"]
BY_SHAPE = pytest.mark.parametrize("shape", SHAPES)


def model_and_batch(seed: int = 0, shape: str = "gpt2"):
    options = [
        *SHAPES[shape],
        "model.layers=2",
        "tokenizer=bytes",
        "model.max_length=32",
        "trainer.sequence_length=16",
        *([] if shape == "gpt2" else [*MODERN, f"model.tied_head={shape != 'untied'}"]),
    ]
    model = build_model(compose(options).config.model, seed=seed)
    with torch.no_grad():  # biases and norms start as constants, which would hide a mistake
        for parameter in model.parameters():
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    tokens = torch.randint(0, 257, (3, 17), generator=torch.Generator().manual_seed(seed))
    return model, tokens[:, :-1], tokens[:, 1:]


def whole(output):
    """The loss with its auxiliary part, where there is one."""
    return sum(output) if isinstance(output, tuple) else output


def trained(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


SWITCHES = [
    Kernels(loss=False, gelu=False, norm=False),
    Kernels(loss=True, gelu=False, norm=False),
    Kernels(loss=False, gelu=True, norm=False),
    Kernels(loss=False, gelu=False, norm=True),
    Kernels(),
]


CASES = [("gpt2", kernels) for kernels in SWITCHES]
CASES += [(shape, kernels) for shape in SHAPES if shape != "gpt2" for kernels in (SWITCHES[0], SWITCHES[-1])]


@pytest.mark.parametrize(("shape", "kernels"), CASES, ids=str)
def test_the_fused_path_has_the_plain_decoders_loss_and_gradients(shape, kernels):
    model, tokens, targets = model_and_batch(shape=shape)
    expected = whole(model.loss(tokens, targets))
    expected.backward()
    plain = {name: parameter.grad.clone() for name, parameter in trained(model)}
    model.zero_grad()
    loss = whole(fused_loss(model, tokens, targets, kernels, dtype=torch.float32))
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    for name, parameter in trained(model):
        torch.testing.assert_close(
            parameter.grad, plain[name], atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("kernels", [SWITCHES[0], SWITCHES[-1]], ids=str)
def test_a_z_loss_is_added_in_training_only(kernels):
    model, tokens, targets = model_and_batch(shape="gemma2")
    targets = targets.clone()
    targets[0, :5] = -100
    plain = fused_loss(model.eval(), tokens, targets, kernels, dtype=torch.float32)
    model.save_memory("none", LossSettings(z_loss=0.1))
    assert torch.equal(fused_loss(model, tokens, targets, kernels, dtype=torch.float32), plain)
    found = fused_loss(model.train(), tokens, targets, kernels, dtype=torch.float32)
    expected = model.loss(tokens, targets)
    assert float(expected) > float(plain) + 0.1
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("shape", ["gpt2", "gemma2", "smollm3"])
def test_without_targets_it_returns_the_logits(shape):
    model, tokens, _ = model_and_batch(shape=shape)
    found = fused_loss(model, tokens, None, Kernels(), dtype=torch.float32)
    torch.testing.assert_close(found, model(tokens)[..., :257], atol=1e-5, rtol=1e-5)


def test_targets_that_do_not_count_are_left_out():
    model, tokens, targets = model_and_batch()
    targets = targets.clone()
    targets[0, :5] = -100
    torch.testing.assert_close(
        fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32),
        model.loss(tokens, targets),
        atol=1e-6,
        rtol=1e-6,
    )


@pytest.mark.parametrize("kernels", [SWITCHES[0], SWITCHES[-1]], ids=str)
@pytest.mark.parametrize("shape", ["gpt2", "qwen3", "gemma2"])
def test_documents_are_kept_apart_as_the_plain_decoder_keeps_them(kernels, shape):
    model, tokens, targets = model_and_batch(shape=shape)
    starts = torch.zeros_like(tokens, dtype=torch.bool)
    starts[0, 5] = starts[1, 0] = starts[1, 9] = True
    expected = model.loss(tokens, targets, starts)
    assert not torch.allclose(expected, model.loss(tokens, targets))
    expected.backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss = fused_loss(model, tokens, targets, kernels, dtype=torch.float32, document_starts_bt=starts)
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_gradients_scale_with_the_loss():
    """Accumulation divides the loss: the gradient that was made ahead must follow."""
    model, tokens, targets = model_and_batch()
    (fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32) / 3).backward()
    third = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad / 3, third[name], atol=1e-7, rtol=1e-5)


def test_a_loss_without_gradient_is_the_same():
    model, tokens, targets = model_and_batch()
    with torch.no_grad():
        loss = fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32)
    torch.testing.assert_close(loss, model.loss(tokens, targets), atol=1e-6, rtol=1e-6)


@BY_SHAPE
def test_in_bf16_the_fused_path_is_as_near_the_truth_as_autocast(shape):
    model, tokens, targets = model_and_batch(shape=shape)
    truth = whole(model.loss(tokens, targets)).item()
    with torch.autocast("cpu", torch.bfloat16):
        autocast = whole(model.loss(tokens, targets)).item()
    fused = whole(fused_loss(model, tokens, targets, Kernels())).item()
    assert abs(fused - truth) <= 4 * abs(autocast - truth) + 2e-3


@pytest.mark.skipif(INTERPRETED, reason="the interpreter truncates to bf16 where a GPU rounds")
def test_a_residual_stream_in_float32_is_nearer_the_truth_than_one_in_bf16():
    truth = gradients(None)
    assert distance(gradients(Kernels(fp32_residual=True)), truth) < distance(gradients(Kernels()), truth)


# Plain bf16 is 0.012 and 0.018 from the truth in these two models.
@pytest.mark.parametrize(("shape", "bound"), [("gpt2", 0.02), ("qwen3", 0.03)])
def test_a_residual_stream_in_float32_hands_its_branches_gradients_in_bf16(shape, bound):
    assert distance(gradients(Kernels(fp32_residual=True), shape), gradients(None, shape)) < bound


def gradients(kernels, shape="gpt2"):
    """By the fused path in bf16, or of the plain decoder in float32."""
    model, tokens, targets = model_and_batch(shape=shape)
    loss = model.loss(tokens, targets) if kernels is None else fused_loss(model, tokens, targets, kernels)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def distance(found, expected):
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def test_routers_count_the_same_loads_on_the_fused_path():
    model, tokens, targets = model_and_batch(shape="experts")
    mixtures = [block.mixture for block in model.blocks.values()]
    model.loss(tokens, targets)
    plain = [(mixture.router.take_load(), mixture.experts.take_served()) for mixture in mixtures]
    fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32)
    for mixture, (load, served) in zip(mixtures, plain, strict=True):
        assert torch.equal(mixture.router.take_load(), load)
        assert int(mixture.experts.take_served()) == int(served) == tokens.numel() * 2


def test_experts_without_tokens_get_no_gradient():
    model, tokens, targets = model_and_batch(shape="experts")
    router = model.blocks["1"].mixture.router
    with torch.no_grad():
        router.weight.zero_()  # equal scores: the same experts win for every token
    whole(fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32)).backward()
    unused = router.take_load() == 0
    assert unused.any()
    gradient = model.blocks["1"].mixture.experts.up.weight.grad
    assert not gradient[unused].any() and all(expert.any() for expert in gradient[~unused])


def test_logits_of_a_router_in_bf16_have_float32s_accuracy():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 96, generator=generator).bfloat16()
    weight = torch.randn(16, 96, generator=generator)
    found, expected = router_logits(x, weight), x.double() @ weight.double().t()
    assert float((found - expected).norm() / expected.norm()) < 3e-7


def test_a_target_in_the_padding_cannot_be_predicted():
    model, tokens, targets = model_and_batch()
    targets = targets.clone()
    targets[0, 0] = 257  # the first id that is no token
    assert fused_loss(model, tokens, targets, Kernels(), dtype=torch.float32).isinf()


@pytest.mark.parametrize("shape", [(1, 5), (130, 17), (700, 300)])
def test_rows_are_summed_in_float32(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(sum_rows(x), x.float().sum(0), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("model.dropout=0.1", "dropout"),
        ("model=deepseek-tiny", "latent attention"),
        ("model=gpt-oss-tiny", "attention sinks"),
        ("model.scale_embedding=true", "scaled embeddings"),
    ],
)
def test_a_model_it_does_not_serve_is_named_with_the_reason(option, reason):
    assert reason in (
        fused_model_problem(compose([option, "tokenizer=bytes", "trainer.sequence_length=512"]).config.model) or ""
    )


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b-v0.1", "mixtral-8x7b", "olmo-2-1b", "gemma-2-2b"]
)
def test_it_serves_llamas_descendants(name):
    assert (
        fused_model_problem(compose([f"model={name}", "tokenizer=bytes", "trainer.sequence_length=512"]).config.model)
        is None
    )


def test_weights_that_are_kept_in_bf16_themselves_get_their_gradients_in_bf16():
    """As a sharded model's are, once they are gathered."""
    model, tokens, targets = model_and_batch()
    model.to(torch.bfloat16)
    fused_loss(model, tokens, targets, Kernels()).backward()
    found = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.dtype == torch.bfloat16 for gradient in found)
    assert distance([gradient.float() for gradient in found], gradients(None)) < 0.03


@pytest.mark.skipif(INTERPRETED, reason="this is the run inside the interpreter")
def test_the_triton_kernels_pass_the_same_tests_in_the_interpreter():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
