"""A real pretrained model end to end: generate, evaluate, continue its training, export. Needs PyPI once."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest
import torch

from skytrain.cli.options import compose_overrides
from skytrain.evaluation import Sampling
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.generate import generate
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from tests.support.smollm2 import smollm2_folder

pytestmark = pytest.mark.slow
PROMPT, NEW_TOKENS = "The capital of France is", 60
NEAR_TIE = 1e-4  # between the two largest logits: either token may follow, by rounding
TEXT_BYTES = 2 * 10**6
STEPS, HELD_OUT = 50, "4K"  # small, for a CPU


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2_folder()


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """2 MB of Python's standard library, as files of one document each."""
    target, left = tmp_path_factory.mktemp("text"), TEXT_BYTES
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        content = path.read_bytes()[:left]
        (target / f"{path.stem}.txt").write_bytes(content.decode("utf-8", "ignore").encode())
        left -= len(content)
        if not left:
            break
    return target


def certain_tokens(folder: Path) -> list[int]:
    """What transformers continues the prompt with greedily, up to the first near tie."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    found = model.generate(
        tokens, max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    certain: list[int] = []
    for token, logits in zip(found.sequences[0, tokens.size(1) :].tolist(), found.logits, strict=True):
        first, second = logits[0].topk(2).values.tolist()
        if first - second < NEAR_TIE:
            break
        certain.append(token)
    return certain


def test_a_pretrained_model_speaks_as_in_transformers(folder):
    from transformers import AutoTokenizer

    config = compose_overrides([]).config
    pieces = generate(config, str(folder), PROMPT, Sampling(temperature=0), max_tokens=NEW_TOKENS)
    expected = certain_tokens(folder)
    assert len(expected) >= 20, "too few tokens to compare"
    written = AutoTokenizer.from_pretrained(folder).decode(expected, skip_special_tokens=True)
    assert " Paris" in written and "".join(pieces).startswith(written)


def test_continued_training_lowers_the_held_out_loss_and_the_export_still_speaks(folder, text, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(tmp_path)
    composed = compose_overrides(
        [
            "model=hf-weights",
            f"model.weights={folder}",
            "data=text",
            f"data.source.paths={text}/*.txt",
            "trainer.sequence_length=128",
            "trainer.micro_batch=1",
            "trainer.batch_tokens=128",
            f"trainer.steps={STEPS}",
            "trainer.validate_every=null",
            "trainer.checkpoint_every=null",
            "trainer.device=cpu",
            "optimizer.lr=5e-5",
            "lr_schedule.warmup_steps=5",
            "run=more",
        ]
    )
    config = composed.config
    prepared = prepare(config, Silent())
    assert prepared.train.tokenizer.vocab_size == 49152
    before = evaluate(config, LossRequest(str(folder), max_tokens=HELD_OUT), Silent())[1].loss
    train(config, Silent())
    after = evaluate(config, LossRequest("more", max_tokens=HELD_OUT), Silent())[1].loss
    print(f"held-out loss: {before:.4f} -> {after:.4f} after {STEPS} steps")
    assert after < before
    export(config, ExportRequest("more", tmp_path / "out"), Silent())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16 and tokenizer.chat_template
    tokens = tokenizer(PROMPT, return_tensors="pt")
    assert "Paris" in tokenizer.decode(model.generate(**tokens, max_new_tokens=12, do_sample=False)[0])
    card = (tmp_path / "out/README.md").read_text()
    assert f"from the weights of {folder.name}" in card and str(folder) not in card
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] in (2, [0, 2])
