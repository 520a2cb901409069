"""What Skytrain relies on in Lightning beyond its documentation. After an upgrade, a failure here names what changed."""

import ast
import copy
import importlib
import inspect
import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

from skytrain.parallel import lightning_internals as internals

ACCUMULATE = 3


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.weight(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def double(self, x):
        return 2 * x


class Numbers(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(torch.ones(1000, 1))


class Kept(CheckpointIO):
    def __init__(self):
        self.saved = None

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.saved = checkpoint

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return self.saved

    def remove_checkpoint(self, path):
        raise AssertionError


class Seen(pl.Callback):
    """What a fit shows at its hooks."""

    def __init__(self, start=0):
        self.start, self.ends, self.steps, self.fitting, self.datamodule = start, [], [], None, None
        self.dumped, self.handler_stayed = None, None

    def on_fit_start(self, trainer, module):
        if self.start:
            internals.start_at_step(trainer, self.start)

    def on_train_start(self, trainer, module):
        self.fitting, self.datamodule = internals.is_fitting(trainer), internals.datamodule_of(trainer)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def on_after_backward(self, trainer, module):
        self.ends.append(internals.ends_step(trainer))

    def on_train_batch_end(self, trainer, module, *_):
        self.steps.append(trainer.global_step)
        self.handler_stayed = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN

    def on_train_end(self, trainer, module):
        trainer.save_checkpoint("anywhere")
        self.dumped = internals.dump_checkpoint(trainer)


def fit(max_steps, seen, kept=None, accumulate=ACCUMULATE, **options):
    kept = kept or Kept()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        accumulate_grad_batches=accumulate,
        callbacks=[seen],
        plugins=[kept],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), datamodule=Numbers(), **options)
    return trainer, kept


@pytest.fixture(autouse=True)
def _former_handler():
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


@pytest.fixture(scope="module")
def fitted():
    former = signal.getsignal(signal.SIGTERM)
    seen = Seen()
    trainer, kept = fit(2, seen)
    signal.signal(signal.SIGTERM, former)
    return SimpleNamespace(trainer=trainer, kept=kept, seen=seen)


def test_the_backward_pass_of_the_last_micro_batch_of_a_step_is_known_as_such(fitted):
    assert fitted.seen.ends == [False, False, True] * 2


def test_a_fit_is_known_as_one_and_shows_its_data_module(fitted):
    assert fitted.seen.fitting is True
    assert isinstance(fitted.seen.datamodule, Numbers)


def test_a_signal_handler_that_is_set_when_training_starts_stays(fitted):
    """Lightning sets its own before that."""
    assert fitted.seen.handler_stayed


def test_a_dumped_checkpoint_is_what_saving_gives_to_the_checkpoint_plugin(fitted):
    assert fitted.seen.dumped.keys() == fitted.kept.saved.keys()
    assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "global_step"} <= fitted.seen.dumped.keys()
    assert fitted.seen.dumped["loops"] == fitted.kept.saved["loops"]


def test_a_fit_can_start_its_counts_at_a_step():
    seen = Seen(start=5)
    trainer, _ = fit(7, seen)
    assert seen.ends == [False, False, True] * 2
    assert (seen.steps[0], trainer.global_step) == (5, 7)


def test_a_checkpoint_resumes_with_another_number_of_micro_batches_per_step(fitted):
    """Two steps of 3 micro-batches, resumed with 4: without recounting, the first step would end after 2."""
    kept, seen = Kept(), Seen()
    kept.saved = copy.deepcopy(fitted.kept.saved)
    internals.recount_batches(kept.saved, 4)
    fit(4, seen, kept, accumulate=4, ckpt_path="anywhere")
    assert seen.ends == [False, False, False, True] * 2


def test_a_module_takes_the_device_that_it_is_told():
    module = Line()
    internals.set_module_device(module, torch.device("meta"))
    assert module.device == torch.device("meta")


def test_a_strategy_can_forget_its_module():
    strategy = SingleDeviceStrategy("cpu")
    strategy.connect(Line())
    assert strategy.lightning_module is not None
    internals.forget_module(strategy)
    assert strategy.lightning_module is None


def test_functions_for_rank_zero_follow_the_rank_that_was_set():
    former = rank_zero_only.rank
    try:
        ran = []
        for rank in (1, 0):
            internals.set_rank_zero(rank)
            rank_zero_only(ran.append)(rank)
        assert ran == [0]
    finally:
        internals.set_rank_zero(former)


def test_reduction_leaves_a_tensor_alone_without_a_process_group_and_reduces_in_place_with_one():
    given = torch.tensor([2.0])
    assert internals.reduce_over_ranks(given, None, "mean") is given
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for operation in ("mean", "sum"):
            assert internals.reduce_over_ranks(given, None, operation) is given
        assert given.item() == 2.0
    finally:
        torch.distributed.destroy_process_group()


def test_a_method_is_called_through_the_wrapper_that_a_strategy_put_around_the_module():
    class Wrapper(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, *args):
            self.calls += 1
            return self.inner(*args)

    module, strategy = Line(), SingleDeviceStrategy("cpu")
    strategy.connect(module)
    strategy.model = wrapper = Wrapper(module)
    assert internals.call_through_wrapper(strategy, module, "double", 21) == 42
    assert wrapper.calls == 1


def test_lightning_makes_the_deepspeed_engine_where_ours_replaces_it():
    theirs = inspect.signature(DeepSpeedStrategy._setup_model_and_optimizer)
    assert list(theirs.parameters) == ["self", "model", "optimizer", "lr_scheduler"]
    for method in (DeepSpeedStrategy._setup_model_and_optimizers, DeepSpeedStrategy._initialize_deepspeed_train):
        assert "self._setup_model_and_optimizer(" in inspect.getsource(method)


def test_what_is_silenced_is_still_what_lightning_says():
    texts = "".join(
        ast.unparse(ast.parse(inspect.getsource(importlib.import_module(f"lightning.{module}"))))
        for module in (
            "fabric.plugins.environments.slurm",
            "pytorch.trainer.configuration_validator",
            "pytorch.trainer.connectors.data_connector",
            "pytorch.trainer.connectors.logger_connector.logger_connector",
            "pytorch.loops.training_epoch_loop",
            "pytorch.strategies.deepspeed",
        )
    )
    assert [text for text in internals.QUIET_WARNINGS if text not in texts] == []
    loaded = logging.Logger.manager.loggerDict
    assert [name for name in internals.QUIET_LOGGERS if name not in loaded] == []


@pytest.mark.parametrize(
    "line",
    [
        "from lightning.fabric.utilities.distributed import _sync_ddp",
        "from lightning.pytorch.strategies import _private",
        "import lightning.pytorch.loops.fit_loop",
        "trainer._checkpoint_connector.restore(None)",
        "done = trainer.fit_loop.done",
        "self.trainer.strategy._forward_redirection()",
        "checkpoint['loops']['fit_loop']",
    ],
)
def test_the_codebase_check_finds_internals_of_lightning_elsewhere(line):
    scripts = Path(__file__).parents[2] / "scripts"
    program = f"import ast, check_codebase as c; print(*map(c._lightning_internal, ast.walk(ast.parse({line!r}))))"
    found = subprocess.run([sys.executable, "-c", program], cwd=scripts, capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) - {"None"}
