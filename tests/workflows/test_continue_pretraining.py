"""Continue a pretrained model, from an empty folder to a chat model that answers: docs/continue-pretraining.md, tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skytrain.models import build_model, compose_model, save_hf_folder
from tests.support.hf_tokenizers import make_tokenizer_folder
from tests.support.hub_server import PublishedModel, download_hub
from tests.support.s3 import S3Server

from .shell import Shell
from .training_jobs import training_jobs

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


def write_chats(folder: Path) -> None:
    chats = [{"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}] * 200
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (folder / "chat.jinja").write_text(TEMPLATE)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [("parallel=single",), ("parallel=deepspeed-zero3", "--processes", "2")], ids=" ".join)
def test_a_base_model_becomes_a_chat_model_that_answers(
    published: PublishedModel, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    """In one process, and by DeepSpeed's ZeRO-3 on two, whose checkpoints export and chat read as they are."""
    write_chats(tmp_path)
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


@pytest.mark.slow
def test_a_training_job_of_sagemaker_continues_a_model_with_deepspeed_to_a_chat_model_that_answers(
    published: PublishedModel, tmp_path: Path, s3_server: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    """The commands of "On rented machines"; four processes on CPUs stand for a machine's GPUs."""
    write_chats(tmp_path)
    settings = (
        *("recipe=llama-3.1-8b-p4d", "model=hf-weights", f"model.weights={NAME}", "parallel=deepspeed-zero3"),
        *("data=chat", "data.source.paths=chats.jsonl", "data.source.template=chat.jinja", *SIZE),
        "trainer.device=auto",
    )
    with training_jobs(tmp_path, s3_server) as sagemaker:
        offline = Shell(tmp_path, **sagemaker.environment, HF_ENDPOINT="http://127.0.0.1:9")
        offline.run("cloud", "init", "--from", "outputs.json", "--owner", "ada")
        launch = (
            *("launch", "train", *settings, "run=chat", "cloud=sagemaker", "budget.usd=400", *sagemaker.settings),
            *("--instance", "g5.12xlarge", "--nodes", "1", "--market", "on-demand"),
        )
        assert "skytrain models fetch" in offline.run(*launch, "--yes", code=2).stderr
        with download_hub(published) as endpoint:
            online = Shell(tmp_path, **sagemaker.environment, HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1")
            online.run("models", "fetch", NAME, "cloud=aws")
        offline.run("prepare", *settings, "cloud=aws")
        [*_, shown] = json.loads(offline.run(*launch, "--dry-run").stdout)
        sagemaker.upload_bundle(shown["parameters"])
        offline.run(*launch, "--yes", "--no-follow")
        # moto does not keep the environment of a job.
        code, log = sagemaker.run({**sagemaker.request(), "Environment": shown["parameters"]["Environment"]})
        assert code == 0, log
        offline.run("export", "--from", "chat", "--to", "hf", "--out", "my-llama", "cloud=aws")
    said = offline.run("chat", "my-llama", "--temperature", "0", "--max-tokens", "20", typed=f"{QUESTION}\n")
    assert said.stdout.strip() == ANSWER
