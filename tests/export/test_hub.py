"""Pushing an export to a Hugging Face hub, on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command as command

from skytrain.cli.main import app
from skytrain.config import BPETokenizerConfig, SkytrainError, compose
from skytrain.export import check_hub_name, export_hf, hub, push_folder
from skytrain.models import build_model
from skytrain.pipelines.export import ExportRequest, export
from skytrain.storage import Retry
from skytrain.tokens import train_bpe
from tests.support.hub_server import HubContents, upload_hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").write_text("{}")
    (tmp_path / "out/model-00001-of-00002.safetensors").write_bytes(b"a" * 3000)
    (tmp_path / "out/model-00002-of-00002.safetensors").write_bytes(b"b" * 4000)
    return tmp_path / "out"


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch):
    """A hub that takes one token, which this process has."""
    found = HubContents(token="hf_secret")
    with upload_hub(found) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", endpoint, raising=False)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(hub, "RETRY", Retry(seconds=0.0))
        yield found


def test_the_files_arrive_in_one_commit_of_a_private_repository(folder, contents):
    seen: list[tuple[float, float]] = []
    address = push_folder(folder, "team/model", private=True, progress=lambda done, total: seen.append((done, total)))
    assert contents.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert (contents.private, contents.commits, len(contents.uploads)) == ({"team/model": True}, 1, 2)
    assert seen[-1] == (7002, 7002) and address.endswith("/commit/" + "0123456789abcdef" * 2 + "01234567")


def test_a_push_that_failed_sends_only_what_is_missing(folder, contents):
    sent = contents.uploads
    second, kept = folder / "model-00002-of-00002.safetensors", folder.parent / "kept"
    second.rename(kept)
    push_folder(folder, "team/model", private=False)
    kept.rename(second)
    contents.failing_uploads = 1
    with pytest.raises(SkytrainError, match=r"team/model: the upload to the Hugging Face hub failed.*\n  push the"):
        push_folder(folder, "team/model", private=False)
    assert (len(sent), contents.commits) == (1, 1)
    push_folder(folder, "team/model", private=False)
    assert (len(sent), contents.commits) == (2, 2)
    assert contents.files[second.name] == second.read_bytes()


def test_a_hub_that_asks_for_a_token_is_explained(folder, contents, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(
        SkytrainError, match=r"team/model: the Hugging Face hub asks for a token\n  run `hf auth login`"
    ):
        push_folder(folder, "team/model", private=True)


def test_a_name_that_the_hub_would_refuse_is_refused_before_the_export():
    with pytest.raises(SkytrainError, match=r"'a/b/c' cannot be a repository's name\n  give OWNER/NAME"):
        check_hub_name("a/b/c")


def test_a_folder_that_was_exported_before_is_pushed_as_it_is(folder, contents, tmp_path):
    request = ExportRequest(out=folder, to="hub", repository="team/model")
    line = export(compose([f"store.root={tmp_path}/store"]).config, request)
    assert line.startswith(f"{folder} -> http://") and folder.is_dir()
    assert contents.files.keys() == {path.name for path in folder.iterdir()}


def test_the_command_asks_for_what_is_missing():
    for words, problem in ((["--to", "hub"], "needs the repository"), (["--to", "hf"], "--to hf needs the path")):
        with pytest.raises(SkytrainError, match=problem):
            command(app).main(["export", *words], standalone_mode=False)


def test_an_interrupted_push_of_another_model_is_not_taken_for_this_one(contents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=280, sample_bytes=10**5)
    tokenizer = train_bpe(settings, ["the quick brown fox jumps over the lazy dog"] * 3)
    model = compose(["model=llama-tiny", "model.vocab_size=300", "model.layers=1", "tokenizer=bytes"]).config.model
    for name, seed in (("first", 1), ("second", 2)):
        export_hf(build_model(model, seed=seed), tokenizer, tmp_path / name)
    config = compose([f"store.root={tmp_path}/store"]).config
    requests = [ExportRequest(source=f"./{name}", to="hub", repository="team/model") for name in ("first", "second")]
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(SkytrainError, match="asks for a token"):
        export(config, requests[0])
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    export(config, requests[1])
    assert contents.files["model.safetensors"] == (tmp_path / "second/model.safetensors").read_bytes()
    assert [path.name for path in tmp_path.glob("*.upload")] == ["team--model--first--bf16.upload"]
