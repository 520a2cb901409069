"""Continue a pretrained model, from an empty folder to a chat model that answers: docs/continue-pretraining.md, tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skytrain.models import build_model, compose_model, save_hf_folder
from tests.support.hf_tokenizers import make_tokenizer_folder
from tests.support.hub_server import PublishedModel, download_hub

from .shell import Shell

NAME = "acme/Tiny-Llama"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
QUESTION, ANSWER = "what is two and two", "it is four"
SIZE = (
    "trainer.sequence_length=64",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=512",
    "trainer.steps=60",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=30",
    "trainer.device=cpu",
    "trainer.precision=32-true",
    "trainer.activation_checkpointing=none",
    "trainer.loss_chunk_tokens=null",
    "trainer.loggers=[]",
    "optimizer.lr=3e-3",
    "lr_schedule.warmup_steps=5",
    "data.validation_fraction=0",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> PublishedModel:
    """A base model on the hub: its tokenizer has no chat template."""
    folder = make_tokenizer_folder("byte_level", tmp_path_factory.mktemp("hub"), [f"{QUESTION} {ANSWER} " * 50], 400)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    words = ["model=llama-tiny", "tokenizer=bytes", "model.vocab_size=512", "model.pad_vocab_to=1", *SIZE[:3]]
    save_hf_folder(build_model(compose_model(words).config.model, seed=3), folder)  # type: ignore[arg-type]
    return PublishedModel(NAME, {path.name: path.read_bytes() for path in folder.iterdir()}, license="llama3.1")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [("parallel=single",), ("parallel=deepspeed-zero3", "--processes", "2")], ids=" ".join)
def test_a_base_model_becomes_a_chat_model_that_answers(
    published: PublishedModel, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    """In one process, and by DeepSpeed's ZeRO-3 on two, whose checkpoints export and chat read as they are."""
    chats = [{"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}] * 200
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    settings = (
        *("recipe=llama-3.1-8b-p4d", "model=hf-weights", f"model.weights={NAME}", "data=chat"),
        *("data.source.paths=chats.jsonl", "data.source.template=chat.jinja", *SIZE),
    )
    with download_hub(published) as endpoint:
        online = Shell(tmp_path, HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1", XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert "llama3.1" in online.run("models", "fetch", NAME).stderr
    offline = Shell(tmp_path, HF_ENDPOINT="http://127.0.0.1:9", XDG_CACHE_HOME=str(tmp_path / "cache2"))
    planned = offline.run("plan", *settings, "trainer.device=auto", "--instance", "g5.xlarge", "parallel=single").stdout
    assert "Tiny-Llama" in planned
    offline.run("prepare", *settings)
    offline.run("train", *settings, "run=chat", *mode)
    offline.run("export", "--from", "chat", "--to", "hf", "--out", "my-llama")
    card = (tmp_path / "my-llama/README.md").read_text()
    assert f'base_model: "{NAME}"' in card and str(tmp_path) not in card
    assert (tmp_path / "my-llama/chat_template.jinja").read_text() == TEMPLATE
    said = offline.run("chat", "my-llama", "--temperature", "0", "--max-tokens", "20", typed=f"{QUESTION}\n")
    assert said.stdout.strip() == ANSWER
    direct = offline.run("chat", "chat", "--temperature", "0", "--max-tokens", "20", typed=f"{QUESTION}\n")
    assert direct.stdout == said.stdout
