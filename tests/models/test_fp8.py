"""fp8 layers, by the arithmetic of their reference: the same on every device."""

import pytest
import torch

from skytrain.config import ConfigError, compose
from skytrain.models import Fp8Linear, build_model
from skytrain.models.fp8 import round_fp8, scaled_product
from skytrain.parallel import use_fp8
from skytrain.training import apply_fp8, choose_loss
from tests.support.tiny import ONE_LAYER

FP8 = ("trainer.device=auto", "trainer.fp8=tensorwise", "trainer.compile=true")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_the_largest_value_of_each_scale_is_fp8s_largest(dim):
    low, scale = round_fp8(random(8, 16), torch.float8_e4m3fn, dim)
    tops = low.float().abs().amax() if dim is None else low.float().abs().amax(dim)
    assert (tops == torch.finfo(torch.float8_e4m3fn).max).all()
    assert error(low.float() * scale, random(8, 16)) < 0.04


def test_zeros_stay_zeros():
    low, scale = round_fp8(torch.zeros(4, 4), torch.float8_e4m3fn, None)
    assert not low.float().any() and scale.isfinite()


def test_a_row_of_outliers_spoils_the_others_only_with_one_scale_for_all():
    a, b = random(32, 64), random(64, 32, seed=1)
    a[0] *= 1e5
    expected = a @ b
    tensorwise, rowwise = (scaled_product(a, b, rowwise)[1:] for rowwise in (False, True))
    assert error(rowwise, expected[1:]) < 0.06 < error(tensorwise, expected[1:])


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_an_fp8_layer_is_near_a_plain_one_forward_and_backward(scaling):
    plain = torch.nn.Linear(64, 32)
    ours = torch.nn.Linear(64, 32)
    ours.load_state_dict(plain.state_dict())
    ours.__class__, ours.scaling = Fp8Linear, scaling
    x = random(4, 10, 64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for layer, each in zip((plain, ours), inputs, strict=True):
        layer(each).backward(random(4, 10, 32, seed=1))
    assert error(ours(x), plain(x)) < 0.06
    assert error(inputs[1].grad, inputs[0].grad) < 0.08
    assert error(ours.weight.grad, plain.weight.grad) < 0.08
    assert error(ours.bias.grad, plain.bias.grad) < 0.02
    assert ours.weight.grad.dtype == torch.float32


def test_a_model_keeps_its_names_and_its_head():
    model = build_model(compose(list(ONE_LAYER)).config.model, seed=0)
    names = list(model.state_dict())
    use_fp8(model, "tensorwise")
    assert list(model.state_dict()) == names
    kinds = {name: type(module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert kinds.pop("head.projection") is torch.nn.Linear
    assert set(kinds.values()) == {Fp8Linear}
    tokens = torch.randint(0, 257, (2, 9))
    assert model.loss(tokens[:, :-1], tokens[:, 1:]).isfinite()


def test_a_width_that_the_kernels_do_not_take_is_named():
    with pytest.raises(ConfigError, match="24 is not a multiple of 16"):
        compose([*ONE_LAYER, *FP8, "model.width=24"])


def test_a_device_without_fp8_is_refused_with_what_has_it():
    config = compose([*ONE_LAYER, *FP8]).config
    with pytest.raises(ConfigError, match="Hopper"):
        apply_fp8(config, "cpu", build_model(config.model, seed=0))
    with pytest.raises(ConfigError, match="Hopper"):
        choose_loss(config, "cpu")
