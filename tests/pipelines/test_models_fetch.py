"""Weights of the hub are put into the store once, and every command finds them there by their name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skytrain.cli.main import main
from skytrain.config import ConfigError, DecoderConfig, SkytrainError
from skytrain.evaluation import Sampling
from skytrain.models import build_model, compose_model, load_hf_folder, save_hf_folder
from skytrain.pipelines.doctor import doctor
from skytrain.pipelines.generate import generate
from skytrain.pipelines.models import fetch_model
from skytrain.planning import PlanRequest
from skytrain.runs import Silent
from skytrain.storage import DamagedRecord, Store, open_store
from skytrain.storage.staged import find_staged
from skytrain.targets import Trials, compose_plan, find_inputs, plan_run
from skytrain.targets.inputs import MissingInput
from tests.support.hf_tokenizers import make_tokenizer_folder
from tests.support.hub_server import COMMIT, PublishedModel, download_hub
from tests.targets.conftest import use_store

NAME = "acme/tiny-llama"
SHORT = ["trainer.sequence_length=32", "trainer.micro_batch=2", "trainer.batch_tokens=64", "data=synthetic"]
CONTINUE = ["model=hf-weights", f"model.weights={NAME}", *SHORT]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a model on the hub is: safetensors, a tokenizer with a chat template, a license, and a pickle."""
    folder = make_tokenizer_folder("byte_level", tmp_path_factory.mktemp("hub"), size=400)
    words = ["model=llama-tiny", "tokenizer=bytes", "model.vocab_size=512", "model.pad_vocab_to=1", *SHORT]
    model = build_model(compose_model(words).config.model, seed=3)
    save_hf_folder(model, folder)  # type: ignore[arg-type]
    (folder / "LICENSE").write_text("do as you like")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_acme.py").write_text("raise SystemExit('code of the repository ran')")
    return folder


@pytest.fixture
def hub(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedModel]:
    files = {path.relative_to(exported).as_posix(): path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    published = PublishedModel(NAME, files)
    with download_hub(published) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        for module in ("constants", "hf_api", "file_download"):
            monkeypatch.setattr(f"huggingface_hub.{module}.ENDPOINT", endpoint, raising=False)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for module in ("constants", "file_download"):
            monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield published


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"store.root={tmp_path / 'store'}"


def fetched(root: str) -> Store:
    config = compose_model([root]).config
    fetch_model(config, NAME, Silent())
    return open_store(config.store)


def test_weights_tokenizer_and_license_are_copied_and_neither_pickles_nor_code(hub, root, exported, capsys):
    sys.argv = ["skytrain", "models", "fetch", NAME, root]
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = capsys.readouterr()
    assert "apache-2.0" in printed.err and f"model.weights={NAME}" in printed.out
    store = open_store(root.partition("=")[2])
    model = find_staged(store, NAME)
    assert model is not None and model.commit == COMMIT
    assert {"config.json", "model.safetensors", "tokenizer.json", "LICENSE"} <= set(model.files)
    keys = {stat.key.removeprefix(f"{model.folder}/") for stat in store.list(model.folder)}
    assert not any(key.endswith((".bin", ".py")) for key in keys)
    for name in model.files:
        assert store.read(f"{model.folder}/{name}") == (exported / name).read_bytes()


def test_the_hub_is_asked_once(hub, root, monkeypatch):
    fetched(root)
    before = len(hub.downloads)
    hub.files.clear()
    composed = compose_model([*CONTINUE, root])
    assert isinstance(composed.config.model, DecoderConfig)
    assert composed.config.model.vocab_size == 512
    assert composed.config.model.weights == f"{composed.config.store.root}/models/{NAME}@{COMMIT}"
    assert composed.config.model.name == "tiny-llama"
    text = "".join(generate(composed.config, NAME, "a", Sampling(temperature=0), max_tokens=2))
    assert isinstance(text, str) and len(hub.downloads) == before


def test_a_revision_is_found_by_its_commit_and_by_the_name_it_was_fetched_by(hub, root):
    store = fetched(root)
    assert find_staged(store, f"{NAME}@{COMMIT[:8]}") == find_staged(store, f"{NAME}@main") == find_staged(store, NAME)
    assert find_staged(store, f"{NAME}@v1") is None and find_staged(store, "acme/other") is None


def test_an_interrupted_fetch_resumes_where_it_stopped(hub, root, monkeypatch):
    """The command ends between two files; nothing is visible, and what has arrived is not asked for again."""
    config = compose_model([root]).config
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", _ends_after(2))
        with pytest.raises(KeyboardInterrupt):
            fetch_model(config, NAME, Silent())
    assert find_staged(open_store(config.store), NAME) is None
    first = [name for name, _ in hub.downloads]
    fetch_model(config, NAME, Silent())
    again = [name for name, _ in hub.downloads[len(first) :]]
    assert len(first) == 2 and again and not {*first} & {*again}


def test_a_connection_that_ends_within_a_file_costs_only_the_rest_of_it(hub, root, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.breaks_after = 5000
    fetched(root)
    ranges = [part for _, part in hub.downloads if part not in (None, "bytes=0-")]
    assert ranges == ["bytes=5000-"]


def _ends_after(calls: int):
    from huggingface_hub.file_download import http_get

    left = iter(range(calls))

    def get(*args, **settings):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return http_get(*args, **settings)

    return get


def test_bytes_that_the_hub_does_not_describe_are_refused(hub, root):
    described = dict(hub.files)

    class Changed(dict):
        """Lists what it should have, and serves other bytes."""

        def __getitem__(self, name):
            data = described[name]
            return data[:-1] + bytes([data[-1] ^ 1]) if name == "model.safetensors" else data

    hub.files = Changed(described)
    with pytest.raises(SkytrainError, match=r"model\.safetensors is not what the hub describes"):
        fetched(root)
    hub.files = described
    assert find_staged(fetched(root), NAME) is not None


def test_pickles_only_are_refused(hub, root):
    del hub.files["model.safetensors"]
    with pytest.raises(SkytrainError, match="only pickles"):
        fetched(root)


def test_the_token_comes_from_the_environment_only(hub, root, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(SkytrainError, match="token"):
        fetched(root)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    store = fetched(root)
    assert b"hf_secret" not in b"".join(store.read(stat.key) for stat in store.list())


def test_records_that_name_no_commit_are_damaged(hub, root):
    store = fetched(root)
    store.write(f"models/{NAME}.refs.json", json.dumps({"main": "../../runs/x"}).encode())
    with pytest.raises(DamagedRecord):
        find_staged(store, NAME)


def test_a_plan_takes_the_shape_from_weights_in_the_store(hub, root):
    fetched(root)
    composed, _ = compose_plan([*CONTINUE, root], [], None)
    assert isinstance(composed.config.model, DecoderConfig)
    assert (composed.config.model.family, composed.config.model.layers) == ("llama", 4)


def test_a_plan_of_a_recipe_reads_no_weights_and_a_run_of_it_does(root, monkeypatch):
    words = ["recipe=llama-3.1-8b-p4d", root]
    composed, _ = compose_plan(words, [], None)
    assert composed.unread_weights == "meta-llama/Llama-3.1-8B"
    assert isinstance(composed.config.model, DecoderConfig)
    assert composed.config.model.weights == "meta-llama/Llama-3.1-8B"
    with pytest.raises(SkytrainError, match=r"meta-llama/Llama-3\.1-8B"):
        compose_model(words)


def test_doctor_looks_for_the_weights_of_a_plan_in_the_accounts_store(hub, root, tmp_path):
    out = tmp_path / "plan.json"
    fetched("store.root=skytrain-store")  # of the folder in which the plan is made
    composed, open_mesh = compose_plan([*CONTINUE, "trainer.tokens=1M"], [], None)
    plan_run(composed, open_mesh, PlanRequest(10.0, instance="g5.xlarge"), Trials(0, 1), out)
    shutil.rmtree("skytrain-store")
    fetched(root)
    [finding] = [each for each in doctor(compose_model([root]).config, out) if each.name == "inputs"]
    assert "no tokens" in finding.text  # the weights were found


def test_a_launch_without_its_weights_is_refused_with_the_command_that_fetches_them(tmp_path, monkeypatch):
    store = open_store(str(tmp_path / "bucket"))
    use_store(monkeypatch, lambda: store)
    words = ["recipe=llama-3.1-8b-p4d", "cloud.target=sagemaker", "store.root=s3://bucket/demo"]
    config = compose_model(words, recipe_weights="skip").config
    with pytest.raises(MissingInput, match=r"skytrain models fetch meta-llama/Llama-3\.1-8B cloud=aws"):
        find_inputs(config, "train")


def test_a_launch_looks_at_every_file_of_staged_weights(hub, root, tmp_path, monkeypatch):
    store = fetched(root)
    monkeypatch.setattr("skytrain.targets.inputs._shares_files", lambda config: False)
    config = compose_model([*CONTINUE, root]).config
    with pytest.raises(MissingInput, match="no tokens"):  # the weights are all there
        find_inputs(config, "train")
    model = find_staged(store, NAME)
    assert model is not None
    store.write(f"{model.folder}/model.safetensors", b"half")
    with pytest.raises(MissingInput, match=r"model\.safetensors has 4 bytes"):
        find_inputs(config, "train")
    fetched(root)  # mends it
    with pytest.raises(MissingInput, match="no tokens"):
        find_inputs(config, "train")


def test_settings_that_disagree_with_staged_weights_are_refused(hub, root):
    fetched(root)
    with pytest.raises(ConfigError, match="is not that of the weights"):
        compose_plan(
            ["model=llama-tiny", "model.layers=3", f"model.weights={NAME}", "tokenizer=bytes", *SHORT, root], [], None
        )


def test_the_staged_weights_are_those_of_the_hub(hub, root, exported):
    model = find_staged(fetched(root), NAME)
    assert model is not None
    there = load_hf_folder(Path(root.partition("=")[2]) / model.folder)
    here = load_hf_folder(exported)
    for (name, value), other in zip(there.named_parameters(), here.parameters(), strict=True):
        assert torch.equal(value, other), name


def test_a_tokenizer_that_the_hub_gives_to_nobody_needs_its_token_on_rented_machines(
    hub: PublishedModel, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(monkeypatch, lambda: open_store(str(tmp_path / "bucket")))
    words = ["tokenizer=hf", f"tokenizer.name={exported}", "data=synthetic", "store.root=s3://bucket/demo"]
    config = compose_model([*words, "cloud.target=ec2"]).config
    config = replace(config, tokenizer=replace(config.tokenizer, name=NAME))
    hub.token = "mine"
    monkeypatch.setenv("HF_TOKEN", "mine")  # which rented machines do not have
    with pytest.raises(MissingInput, match=r"cloud\.secrets\.HF_TOKEN=skytrain/hf"):
        find_inputs(config, "prepare")
    given = replace(config, cloud=replace(config.cloud, secrets={"HF_TOKEN": "skytrain/hf"}))
    assert find_inputs(given, "prepare") == []
    hub.token = None
    assert find_inputs(config, "prepare") == []
