"""What only a GPU can run, against references: the loss kernel in CUDA, products by cuBLASLt."""

import pytest
import torch
import torch.nn.functional as F

from skytrain.models.kernels import cublaslt
from skytrain.models.kernels.cross_entropy import IGNORED, LossTerms, _kernel_in_shared, loss_rows
from skytrain.models.kernels.cublaslt import Epilogue

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(("columns", "vocab"), [(64, 50), (50304, 50257), (4096, 4096)])
def test_the_loss_kernel_in_shared_memory_makes_losses_and_gradients(columns, vocab):
    if _kernel_in_shared(columns) is None:
        pytest.skip("this GPU takes the Triton kernel")
    logits, targets = random(300, columns), torch.randint(0, vocab, (300,), device="cuda")
    targets[3], targets[7] = IGNORED, 0
    leaf = logits[:, :vocab].double().requires_grad_()
    expected = F.cross_entropy(leaf, targets, reduction="none", ignore_index=IGNORED)
    (gradient,) = torch.autograd.grad(expected.sum() * 0.5, leaf)
    losses = loss_rows(logits, targets, torch.tensor(0.5, device="cuda"), LossTerms(vocab), gradient=True)
    assert error(losses, expected) < 1e-6
    assert error(logits[:, :vocab], gradient) < 3e-3
    assert not logits[:, vocab:].any()


@pytest.mark.parametrize("x_transposed", [False, True])
@pytest.mark.parametrize("y_transposed", [False, True])
def test_products_take_either_order_of_either_factor(x_transposed, y_transposed):
    x = random(64, 96).t() if x_transposed else random(96, 64)
    y = random(48, 64).t() if y_transposed else random(64, 48)
    assert error(cublaslt.product(x, y), x.double() @ y.double()) < 3e-3
    assert error(cublaslt.product(x, y, torch.float32), x.double() @ y.double()) < 1e-5
    half = torch.tensor(0.5, device="cuda")
    assert error(cublaslt.product(x, y, factor=half), x.double() @ y.double() / 2) < 3e-3


def test_gelu_and_its_slope_are_in_the_epilogues():
    x, y, bias = random(128, 64), random(64, 96), random(96)
    before = torch.empty(128, 96, device="cuda", dtype=torch.bfloat16)
    after = cublaslt.product(x, y, epilogue=Epilogue.GELU_AUX_BIAS, bias=bias, aux=before)
    plain = (x.double() @ y.double() + bias.double()).requires_grad_()
    assert error(before, plain) < 3e-3
    expected = F.gelu(plain, approximate="tanh")
    assert error(after, expected) < 4e-3
    dy, weight = random(128, 32), random(32, 96)
    found = cublaslt.product(dy, weight, epilogue=Epilogue.DGELU, aux=before)
    (slope,) = torch.autograd.grad(expected.sum(), plain)
    assert error(found, (dy.double() @ weight.double()) * slope) < 1e-2
