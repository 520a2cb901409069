"""Recipes of the user's own, and hints for those who know other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.config import ConfigError, SkytrainError, compose
from skytrain.config.group_files import choices_with
from skytrain.config.other_tools import HERE


@pytest.mark.parametrize("header", ["", "# @package _global_\n"])
def test_a_file_in_the_folder_recipe_may_set_anything(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "small_model.yaml").write_text(
        f"{header}defaults:\n  - override /optimizer: muon\ntrainer:\n  steps: 7\nmodel:\n  layers: 2\n"
    )
    composed = compose(["recipe=small_model", "model.heads=4"])
    assert composed.config.trainer.steps == 7 and composed.config.trainer.tokens is None
    assert composed.config.optimizer.name == "muon"
    assert composed.origins["trainer.steps"] == "recipe/small_model.yaml"


def test_the_recipe_of_the_page_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    text = page.partition("`recipe/small_model.yaml`\n```yaml\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "small_model.yaml").write_text(text)
    composed = compose(["recipe=small_model", "trainer.steps=20"])
    config = composed.config
    assert (config.trainer.steps, config.optimizer.name, config.lr_schedule.name) == (20, "adamw", "wsd")
    assert composed.origins["optimizer.lr"] == "recipe/small_model.yaml"
    assert config.data == compose(["recipe=quickstart"]).config.data


def test_a_wrong_setting_in_an_own_recipe_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "wrong.yaml").write_text("trainer:\n  stepz: 7\n")
    with pytest.raises(ConfigError, match=r"trainer\.stepz"):
        compose(["recipe=wrong"])
    (tmp_path / "recipe" / "other.yaml").write_text("trainer:\n  batch_size: 4\n")
    with pytest.raises(ConfigError, match=r"here it is trainer\.batch_tokens"):
        compose(["recipe=other"])
    (tmp_path / "recipe" / "rate.yaml").write_text("trainer:\n  lr: 3e-4\n")
    with pytest.raises(ConfigError, match=r"did you mean optimizer\.lr"):
        compose(["recipe=rate"])
    (tmp_path / "recipe" / "list.yaml").write_text("- trainer\n")
    with pytest.raises(SkytrainError, match=r"recipe/list\.yaml is not a mapping of settings"):
        compose(["recipe=list"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: gpt2-124m\n", r"below it `- override /model: gpt2-124m`"),
        ("data:\n  cleaning: web\n", r"below it `- override /data/cleaning: web`"),
        ("recipe: gpt2-124m-pile\n", r"below it `- gpt2-124m-pile`"),
        ("budget: 150\n", r"`budget:`, and below it `usd: 150`"),
        ("trainer.steps: 7\n", r"`trainer:`, and below it `steps: VALUE`"),
        ("defaults:\n  - /optimizer: lion\n", r"`- override /model: llama-tiny`"),
    ],
)
def test_a_recipe_that_chooses_as_a_command_line_does_is_shown_how_files_do(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(text)
    with pytest.raises(SkytrainError, match=says):
        compose(["recipe=mine"])


def test_a_file_of_a_group_with_another_ending_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yml").write_text("trainer:\n  steps: 7\n")
    with pytest.raises(ConfigError, match=r"recipe/mine\.yml must be named mine\.yaml"):
        compose(["recipe=mine"])


def test_a_path_beside_groups_of_ones_own_is_not_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match=r"'/corpus' is not a choice .*\n.*data.source.paths='/corpus/\*'"):
        compose(["data=/corpus"])


OF_OTHER_TOOLS = (
    *("trainer.batch_size=4", "parallel.strategy=ddp", "n_layer=4", "data.source.paths=X"),
    *("trainer.accelerator=gpu", "trainer.limit_val_batches=10", "optimizer.betas=[0.9,0.95]"),
    *("warmup_ratio=0.1", "model.hidden_size=64", "resume_from_checkpoint=true", "per_device_eval_batch_size=8"),
    *("min_lr=1e-5", "eval_iters=10", "lr_decay_iters=100", "decay_lr=true"),
    *("training.local_batch_size=4", "activation_checkpoint.mode=full", "parallelism.tensor_parallel_degree=2"),
    *(
        "gpus=4",
        "resources.use_spot=true",
        "resources.accelerators=A100:8",
        "epochs=3",
        "precision=bf16",
        "resume=true",
    ),
    *("sequence_len=1024", "num_epochs=3", "val_set_size=0.05", "sample_packing=true", "adapter=lora"),
    *("mixed_precision=bf16", "num_processes=8", "rdzv_backend=c10d", "partition=gpu", "image_uri=x", "max_run=3600"),
)


@pytest.mark.parametrize("word", OF_OTHER_TOOLS)
def test_words_of_other_tools_are_translated(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(ConfigError) as refusal:
        compose([word])
    assert (HERE.get(key) or HERE[key.rpartition(".")[2]]) in str(refusal.value)


def test_the_translations_name_settings_that_exist() -> None:
    known = compose().origins
    for text in HERE.values():
        for word in text.replace(",", " ").split():
            key = word.partition("=")[0].lstrip("'")
            if "=" in word and "." in key and key not in ("data.source.paths", "cloud.slurm.options"):
                assert key in known or choices_with(key), word


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("trainer.precision=bf16", "trainer.precision=bf16-mixed"),
        ("trainer.activation_checkpointing=true", "trainer.activation_checkpointing=full"),
        ("model=gpt2", "model=gpt2-124m"),
        ("budget=150", "budget.usd=150"),
        ("store=s3://bucket/project", "store.root=s3://bucket/project"),
        ("lr=1e-3", "optimizer.lr=0.001"),
        ("trainer.warmup_steps=5", "lr_schedule.warmup_steps=5"),
        ("optimizr.lr=1", "optimizer.lr=1"),
        ("trainer.device=gpu", "trainer.device=cuda"),
        ("parallel=FSDP", "parallel=fsdp"),
        ("model=gpt2-small", "model=gpt2-124m"),
        ("model=meta-llama/Llama-3.1-8B", "model=hf-weights model.weights=meta-llama/Llama-3.1-8B"),
        ("data=corpus/a.jsonl", "data=jsonl data.source.paths='corpus/a.jsonl'"),
        ("trainer.steps=1e3", "trainer.steps=1000"),
        ("budget.usd=$150", "budget.usd=150"),
        ("budget.usd=150$", "budget.usd=150"),
        ("budget.usd=150 USD", "budget.usd=150"),
        ("budget.usd=1,000", "budget.usd=1000"),
        ("budget.usd=150,50", "budget.usd=150.50"),
        ("budget=150$", "budget.usd=150"),
        ("data=roneneldan/TinyStories", "data=tinystories"),
        ("trainer.compile=yes", "trainer.compile=true"),
    ],
)
def test_values_and_groups_that_are_meant_are_offered(word: str, meant: str) -> None:
    with pytest.raises(SkytrainError) as refusal:
        compose([word])
    assert f"did you mean {meant}?" in str(refusal.value)


def test_a_word_without_a_key_is_refused() -> None:
    with pytest.raises(SkytrainError, match="is not key=value"):
        compose(["=5"])


@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("cloud.eks.cluster=training", "cloud=eks"),
        ("model.trust_remote_code=true", "model=hf"),
        ("data.source.messages_key=turns", "data=chat"),
        ("loader.files.train=x", "loader=files"),
    ],
)
def test_a_setting_of_another_choice_names_that_choice(word: str, choice: str) -> None:
    with pytest.raises(ConfigError, match=f"{choice} has it: add it|{choice} and .* have it"):
        compose([word])


@pytest.mark.parametrize("word", ["recipe=../mine", "data=[../mine]", "optimizer={name: adamw}"])
def test_a_choice_is_the_name_of_a_file_in_a_groups_folder(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "mine.yaml").write_text("# @package _global_\nrun: mine\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not a choice"):
        compose([word])


def test_a_word_that_resembles_nothing_gets_no_guess() -> None:
    with pytest.raises(ConfigError) as refusal:
        compose(["trainer.xyz=1"])
    assert "did you mean" not in str(refusal.value) and "trainer has sequence_length" in str(refusal.value)


def test_several_values_point_to_tune() -> None:
    with pytest.raises(SkytrainError, match="skytrain tune"):
        compose(["optimizer.lr=1e-3,3e-4"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("cloud=ec2,eks", "choose one of them: cloud=ec2"),
        ("run=a,b", "run='a,b'"),
        ("tune.steps=100,200", r"tune\.steps=\[100,200\]"),
    ],
)
def test_several_values_of_what_tune_does_not_compare_are_no_sweep(word: str, says: str) -> None:
    with pytest.raises(SkytrainError, match=says) as refusal:
        compose([word])
    assert "skytrain tune" not in str(refusal.value)


def test_files_for_validation_are_the_whole_validation_split() -> None:
    paths = ["data=text", "data.source.paths=a.txt"]
    assert compose(paths).config.data.validation_fraction == 0.05
    named = [*paths, "data.source.validation_paths=b.txt"]
    assert compose(named).config.data.validation_fraction == 0
    assert compose([*named, "data.validation_fraction=0.1"]).config.data.validation_fraction == 0.1
    unset = [*paths, "data.source.validation_paths=null"]
    assert compose(unset).config.data.validation_fraction == 0.05


def test_a_callback_may_be_the_path_of_its_class() -> None:
    [plain, given] = compose(["trainer.callbacks=[mine.Plain,{target: mine.Given, every: 3}]"]).config.trainer.callbacks
    assert (plain.target, plain.args) == ("mine.Plain", {})
    assert (given.target, given.args) == ("mine.Given", {"every": 3})
