"""Equal to lm-evaluation-harness, item by item, on made items in the format of each task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from skytrain.config import BPETokenizerConfig, compose, find_tasks
from skytrain.evaluation import TaskEvaluator, TaskSources, WholeModel
from skytrain.models import build_model, save_hf_folder
from skytrain.storage import open_store
from skytrain.tokens import load_tokenizer_folder, train_bpe
from tests.support.harness import run_with_harness
from tests.support.questions import MAKERS, write_records

pytestmark = pytest.mark.slow
CHOICES = [task for task in MAKERS if task not in ("lambada", "wikitext")]
WITHIN = 1e-3


def tiny_model(folder: Path, text: str) -> WholeModel:
    """With a BPE of its own, so that contexts and continuations are cut into tokens of several letters."""
    tokenizer = train_bpe(BPETokenizerConfig(kind="bpe", name="made", vocab_size=600, sample_bytes=10**6), [text])
    sizes = ["model.layers=2", "model.width=48", "model.heads=4", "model.max_length=128", "trainer.sequence_length=128"]
    config = compose(["model=gpt2-tiny", "tokenizer=bytes", f"model.vocab_size={tokenizer.vocab_size}", *sizes]).config
    model = build_model(config.model, seed=3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    tokenizer.save(folder)
    save_hf_folder(model, folder)
    return WholeModel(model)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    data, folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("model")
    paths = {task: write_records(data, task, 500) for task in MAKERS}
    model = tiny_model(folder, "".join(path.read_text() for path in paths.values()))
    script = Path(__file__).with_name("harness_worker.py")
    theirs = json.loads(run_with_harness(script, str(folder), str(data), ",".join(MAKERS)).splitlines()[-1])
    named = [f"evaluation.data.{task}={path}" for task, path in paths.items()]
    evaluation = compose([f"evaluation.tasks=[{','.join(MAKERS)}]", *named]).config.evaluation
    ours = {}
    for task in find_tasks(evaluation):
        evaluator = TaskEvaluator(task, load_tokenizer_folder(folder), TaskSources(open_store(str(data))))
        evaluator.prepare()
        evaluator.run(model)
        ours[task.name] = evaluator.result
    return ours, theirs


@pytest.mark.parametrize("side", ["harness", "bridge"])
@pytest.mark.parametrize("task", CHOICES)
def test_multiple_choice_is_the_harness_s_item_by_item(compared, task, side):
    mine, theirs = compared[0][task], compared[1][side][task]
    assert mine.items == len(theirs["responses"]) == 500
    for answer, responses, values in zip(mine.answers, theirs["responses"], theirs["values"], strict=True):
        log_probs = [float(log_prob) for log_prob, _ in responses]
        np.testing.assert_allclose(answer["log_probs"]["harness"], log_probs, atol=WITHIN)
        for scoring, value in values.items():
            assert float(answer["chosen"][f"harness_{scoring}"] == answer["label"]) == value
    for scoring in ("acc", "acc_norm", "acc_bytes"):
        measure = mine.measures[f"harness_{scoring}"]
        assert measure.value == pytest.approx(theirs["results"][f"{scoring},none"])
        assert measure.stderr == pytest.approx(theirs["results"].get(f"{scoring}_stderr,none", measure.stderr))


@pytest.mark.parametrize("side", ["harness", "bridge"])
def test_the_last_word_is_the_harness_s_item_by_item(compared, side):
    mine, theirs = compared[0]["lambada"], compared[1][side]["lambada"]
    assert mine.items == len(theirs["responses"]) == 500
    for answer, [[log_prob, right]] in zip(mine.answers, theirs["responses"], strict=True):
        assert answer["log_prob"] == pytest.approx(float(log_prob), abs=WITHIN) and str(answer["right"]) == str(right)
    assert mine.measures["harness_acc"].value == pytest.approx(theirs["results"]["acc,none"])
    assert mine.measures["harness_perplexity"].value == pytest.approx(theirs["results"]["perplexity,none"], rel=1e-4)


@pytest.mark.parametrize("side", ["harness", "bridge"])
def test_whole_texts_are_the_harness_s_text_by_text(compared, side):
    mine, theirs = compared[0]["wikitext"], compared[1][side]["wikitext"]
    for answer, [log_prob] in zip(mine.answers, theirs["responses"], strict=True):
        assert answer["log_prob"] == pytest.approx(float(log_prob), rel=1e-5)
    for scoring in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert mine.measures[scoring].value == pytest.approx(theirs["results"][f"{scoring},none"], rel=1e-4)
    assert sum(answer["tokens"] for answer in mine.answers) > 500 * 64  # texts of more than one window
