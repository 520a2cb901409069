from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from skytrain.config import ConfigError, compose
from skytrain.evaluation import HeldOut, Sampling, WholeModel, evaluate_loss
from skytrain.models import Decoder, build_model, check_precision, choose_device_type, lm_loss, resolve_precision
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.generate import generate
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from skytrain.tokens import Batch
from tests.support.tiny import ONE_LAYER, tiny_config

LENGTH = 8


class Rows:
    """Seven windows of random tokens, as a split of a prepared data set gives them."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).integers(0, 256, (7, LENGTH + 1))

    def windows(self, length: int) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray, length: int, *, document_starts: bool) -> Batch:
        return Batch(torch.from_numpy(self.rows[indices]))


@pytest.fixture
def model() -> Decoder:
    return build_model(compose(ONE_LAYER).config.model, seed=1)


def held_out(**settings: int) -> HeldOut:
    return HeldOut(Rows(), None, LENGTH, **{"batch": 3, **settings})


def test_on_a_cpu_the_loss_is_that_of_the_model_to_the_last_bit(model):
    expected, rows = 0.0, torch.from_numpy(Rows().rows)
    with torch.no_grad():
        for batch in rows.split(3):
            expected += float(lm_loss(model.eval(), batch[:, :-1], batch[:, 1:]).double()) * len(batch) * LENGTH
    report = evaluate_loss(WholeModel(model), held_out())
    assert report.loss == expected / (7 * LENGTH)
    assert (report.windows, report.tokens) == (7, 7 * LENGTH) and math.isnan(report.bits_per_byte)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(model):
    class Small(WholeModel):
        def loss(self, rows):
            sizes.append(rows.rows)
            if rows.rows > 1:
                raise torch.OutOfMemoryError
            return super().loss(rows)

    sizes: list[int] = []
    whole = evaluate_loss(WholeModel(model), held_out(batch=4))
    seen: list[tuple[int, int]] = []
    report = evaluate_loss(Small(model), held_out(batch=4), lambda *done: seen.append(done))
    assert sizes == [4, 2, *[1] * 7] and seen[-1] == (7, 7)
    assert report.loss == pytest.approx(whole.loss, rel=1e-6)


def test_one_sequence_that_does_not_fit_is_an_error(model):
    class Full(WholeModel):
        def loss(self, rows):
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        evaluate_loss(Full(model), held_out())


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16)]
)
def test_logits_are_computed_in_the_precision_asked_for(model, precision, dtype):
    whole = WholeModel(model, torch.device("cpu"), precision)
    assert whole.last_logits([1, 2, 3]).dtype == dtype
    weights = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert {parameter.dtype for parameter in model.parameters()} == {weights}
    exact = WholeModel(build_model(model.config, seed=1)).last_logits([1, 2, 3])
    assert torch.allclose(whole.last_logits([1, 2, 3]).float(), exact, atol=0.05)


def test_tokens_go_to_the_device_that_the_model_was_moved_to(model):
    whole = WholeModel(model, torch.device("meta"))
    assert whole.last_logits([1, 2, 3]).is_meta and whole.loss(torch.from_numpy(Rows().rows)).is_meta


def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_what_is_there():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert choose_device_type("auto") == choose_device_type("cpu") == "cpu"
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        choose_device_type("cuda")
    with pytest.raises(ConfigError, match="--precision: '16-mixed' needs a GPU"):
        check_precision("cpu", "16-mixed", "--precision")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    config = tiny_config(
        root, "trainer.steps=3", "trainer.precision=bf16-mixed", "trainer.validate_every=null", "trainer.device=cpu"
    )
    prepare(config, Silent())
    train(config, Silent())
    return root, config


def test_a_folder_is_evaluated_although_the_micro_batch_is_auto(trained, tmp_path):
    root, config = trained
    export(config, ExportRequest(None, tmp_path / "exported", dtype="fp32"))
    auto = tiny_config(root, "trainer.micro_batch=auto", "trainer.device=cpu")
    _, of_folder = evaluate(auto, LossRequest(str(tmp_path / "exported")), Silent())
    _, of_run = evaluate(config, LossRequest(), Silent())
    assert of_folder.loss == pytest.approx(of_run.loss, abs=1e-5)


def test_a_cpu_evaluates_in_float32_unless_asked_otherwise(trained):
    _, config = trained
    by_default, asked, lower = (
        evaluate(config, LossRequest(precision=precision), Silent())[1].loss
        for precision in (None, "32-true", "bf16-mixed")
    )
    assert by_default == asked != lower
    assert lower == pytest.approx(asked, abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_run_is_evaluated_and_continued_there_as_it_was_trained(trained):
    _, config = trained
    on_gpu = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, device="auto"))
    on_cpu = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, device="cpu"))
    torch.cuda.reset_peak_memory_stats()
    _, found = evaluate(on_gpu, LossRequest(), Silent())
    assert torch.cuda.max_memory_allocated() > 0
    _, exact = evaluate(on_gpu, LossRequest(precision="32-true"), Silent())
    _, expected = evaluate(on_cpu, LossRequest(), Silent())
    assert exact.loss == pytest.approx(expected.loss, abs=1e-4)
    assert found.loss == pytest.approx(expected.loss, abs=2e-2) and found.loss != exact.loss
    greedy = Sampling(temperature=0)
    texts = {
        "".join(generate(chosen, None, "Line", greedy, max_tokens=8, precision="32-true"))
        for chosen in (on_gpu, on_cpu)
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("device", "bf16", "precision"),
    [("cuda", True, "bf16-mixed"), ("cuda", False, "32-true"), ("cpu", True, "32-true")],
)
def test_auto_is_bf16_on_a_gpu_that_has_it_and_float32_elsewhere(device, bf16, precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert resolve_precision(device, "auto") == precision
    assert resolve_precision(device, "16-mixed") == "16-mixed"
