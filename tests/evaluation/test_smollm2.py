"""A real pretrained model on items of common knowledge: the answers of transformers, and far above chance."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from skytrain.config import compose
from skytrain.pipelines.evaluate import TasksRequest, evaluate_tasks
from skytrain.runs import Silent
from tests.support.facts import fact_records
from tests.support.smollm2 import smollm2_folder

CHANCE = 0.25


@pytest.mark.slow
def test_smollm2_answers_as_transformers_computes_it_and_above_chance(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, records = smollm2_folder(), fact_records()
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = [f"evaluation.tasks=[{path}]", f"store.root='{tmp_path}'", "trainer.device=cpu"]
    (found,) = evaluate_tasks(compose(settings).config, TasksRequest((str(folder),)), Silent())
    (result,) = found.results
    assert result.items == len(records) >= 200

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for record, answer in zip(records, result.answers, strict=True):
        start = len(tokenizer(record["context"], add_special_tokens=False).input_ids)
        expected = []
        for choice in record["choices"]:
            ids = tokenizer(f"{record['context']} {choice}", add_special_tokens=False, return_tensors="pt").input_ids
            with torch.no_grad():
                log_probs = model(ids).logits[0, :-1].log_softmax(-1)
            expected.append(float(log_probs[range(ids.size(1) - 1), ids[0, 1:]][start - 1 :].sum()))
        np.testing.assert_allclose(answer["log_probs"]["harness"], expected, atol=1e-3)
        assert answer["chosen"]["harness_acc"] == int(np.argmax(expected))
    measure = result.measures["harness_acc"]
    print(f"SmolLM2-135M: {measure.value:.4f} ± {measure.stderr:.4f} of {result.items} items")
    assert measure.value - 5 * measure.stderr > CHANCE
