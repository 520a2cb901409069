"""Instruction data from files to a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.cli.reads import is_read
from skytrain.config import Config, SkytrainError, compose
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from skytrain.tokens import load_tokenizer_folder, read_tokenizer_settings
from tests.support.hf_tokenizers import make_tokenizer_folder

MODEL = (
    "model=llama-tiny",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.mlp_width=64",
    "model.vocab_size=640",
    "model.max_length=64",
    "trainer.sequence_length=64",
    "trainer.precision=32-true",
    "trainer.device=cpu",
    "trainer.micro_batch=1",
    "trainer.batch_tokens=128",
    "trainer.steps=6",
    "trainer.validate_every=6",
    "trainer.checkpoint_every=3",
    "trainer.loggers=[]",
    "lr_schedule.warmup_steps=0",
    "data.validation_fraction=0.2",
)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The settings of prepared conversations, of which one in eight cannot be used."""
    root = tmp_path_factory.mktemp("chat")
    folder = make_tokenizer_folder("byte_level", root / "tokenizer")
    rows: list[Any] = []
    for i in range(60):
        turns = [
            ("user", f"the text {i}"),
            ("assistant", f"{i} tokens"),
            ("user", "and then"),
            ("assistant", "the end"),
        ]
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns[: 2 + 2 * (i % 2)]]})
    rows[::8] = [{"messages": row["messages"][:1]} for row in rows[::8]]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "data=chat",
        f"data.source.paths={root / 'rows.jsonl'}",
        "tokenizer=hf",
        f"tokenizer.name={folder}",
        f"store.root={root / 'store'}",
        *MODEL,
    ]


def config_of(words: list[str], *more: str) -> Config:
    return compose([*words, *more], read_tokenizer=read_tokenizer_settings).config


def losses(config: Config, run: str) -> list[tuple[float, float]]:
    found = read_metrics(open_store(config.store), run)
    return [(record["train/loss"], record["train/grad_norm"]) for record in found if "train/loss" in record]


def test_conversations_are_prepared_trained_resumed_and_evaluated(words: list[str]) -> None:
    prepared = prepare(config_of(words), Silent())
    made = prepared.train.made_from["chat"]
    assert (made["rows"], made["kept"], made["dropped"]) == (60, 52, {"no assistant turn": 8})
    assert prepared.train.masked and prepared.validation is not None
    assert prepare(config_of(words), Silent()) == prepared

    config = config_of(words, "run=whole")
    assert (config.loader.packing, config.loader.separate_documents) == ("documents", True)
    whole = train(config, Silent()).run
    train(config_of(words, "run=stopped", "trainer.stop_at_step=3"), Silent())
    train(config_of(words, "run=stopped"), Silent())
    assert len(losses(config, whole)) == 6 and losses(config, "stopped") == losses(config, whole)

    # The loss of a step does not depend on how its conversations are spread over micro-batches.
    train(config_of(words, "run=wide", "trainer.micro_batch=2"), Silent())
    wide = losses(config, "wide")
    assert [loss for loss, _ in wide] == pytest.approx([loss for loss, _ in losses(config, whole)], abs=5e-6)

    _, report = evaluate(config, LossRequest("whole"), Silent())
    assert report.loss > 0 and 0 < report.tokens < prepared.validation.tokens


def test_a_sample_is_shown_with_its_trained_part_marked(words: list[str]) -> None:
    prepare(config_of(words), Silent())
    its_data = [word for word in words if is_read("data show", word)]
    shown = CliRunner().invoke(app, ["data", "show", "--sample", *its_data], catch_exceptions=False).stdout
    assert shown.startswith("<|begin_of_text|><|user|>\nthe text ") and shown.count("[[") == shown.count("]]") > 0
    assert "tokens<|eot_id|>]]" in shown


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}<|eot_id|>{% endfor %}"


def test_a_model_trained_with_a_template_of_its_own_is_exported_with_it_and_stops_at_the_end_of_a_turn(
    words: list[str], tmp_path: Path
) -> None:
    """The tokenizer's own template is another one, and its texts end with another token."""
    template = tmp_path / "mine.jinja"
    template.write_text(TEMPLATE)
    config = config_of(words, f"data.source.template={template}", "run=own-template", "trainer.steps=1")
    prepare(config, Silent())
    train(config, Silent())
    template.unlink()  # the store has it
    export(config, ExportRequest("own-template", tmp_path / "out"))
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE
    loaded = load_tokenizer_folder(tmp_path / "out")
    assert loaded.chat_template == TEMPLATE
    end = json.loads((tmp_path / "out/tokenizer.json").read_text())["added_tokens"][-1]
    assert end["content"] == "<|eot_id|>"
    assert end["id"] in json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"]


def test_a_template_that_fails_everywhere_ends_with_one_message(words: list[str], tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(
        SkytrainError, match=r"none of 60 rows can be used: 52 for 'template', 8 for 'no assistant turn'"
    ):
        prepare(config_of(words, f"data.source.template={template}"), Silent())
