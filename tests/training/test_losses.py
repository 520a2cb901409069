"""Which loss runs, and that the module runs it."""

import pytest
import torch

from skytrain.config import compose
from skytrain.models import lm_loss
from skytrain.training import choose_loss, make_module, outline, plan_training
from skytrain.training.losses import attention_kernel
from tests.support.tiny import ONE_LAYER


@pytest.mark.parametrize(
    ("compile_model", "kind", "label"), [(False, "eager", "plain torch"), (True, "compiled", "torch.compile")]
)
def test_a_cpu_runs_plain_torch_or_what_torch_compiles(compile_model, kind, label):
    path = choose_loss(compose([*ONE_LAYER, f"trainer.compile={compile_model}"]).config, "cpu")
    assert (path.kind, path.label, path.kernels) == (kind, label, None)
    assert (path.loss is lm_loss) == (kind == "eager")
    assert not path.lowers_precision


def test_the_module_has_the_loss_that_was_chosen_and_its_label_is_reported():
    config, notes = compose([*ONE_LAYER]).config, []
    module = make_module(config, plan_training(config), outline(config), notes.append)
    assert module.loss is choose_loss(config, "cpu").loss
    assert notes == ["compute: plain torch"]


@pytest.mark.parametrize(
    ("capability", "head_size", "kernel"),
    [
        ((8, 6), 64, "flash"),
        ((9, 0), 64, "cudnn"),
        ((9, 0), 256, "flash"),
        ((10, 0), 256, "flash"),
        ((8, 9), 256, "flash"),
        ((8, 9), 208, "sdpa"),
        ((9, 0), 36, "sdpa"),
        ((9, 0), 512, "sdpa"),
    ],
)
def test_attention_takes_a_kernel_that_serves_the_size_of_its_heads_on_every_gpu(
    capability, head_size, kernel, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert attention_kernel("auto", deterministic=False, head_size=head_size) == kernel
    assert attention_kernel("cudnn", deterministic=False, head_size=head_size) == "cudnn"
