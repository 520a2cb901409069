"""Names that are folders or repositories of the Hugging Face hub, against a hub on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.storage import is_hub_name, resolve_hub_or_folder
from tests.corpus.hub import COMMIT, loopback_hub


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a repository, and a hub cache of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", endpoint, raising=False)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )


def test_a_folder_is_itself(repository: Path) -> None:
    assert resolve_hub_or_folder(str(repository), ["*"]) == repository


def test_a_name_is_downloaded_once_and_only_what_was_asked_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(repository, "team/model", kind="models") as endpoint:
        use(monkeypatch, endpoint)
        found = resolve_hub_or_folder("team/model", ["tokenizer*"])
    assert [path.name for path in found.iterdir()] == ["tokenizer.json"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_hub_or_folder("team/model", ["tokenizer*"]) == found
    assert resolve_hub_or_folder(f"team/model@{COMMIT}", ["tokenizer*"]) == found


def test_without_a_network_the_message_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SkytrainError, match=r"team/model: not a folder here.*cannot be reached"):
        resolve_hub_or_folder("team/model", ["*"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    use(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(SkytrainError, match=r"team/model: not a folder here.*cannot be reached"):
        resolve_hub_or_folder("team/model", ["*"])


def test_a_gated_repository_asks_to_log_in_and_opens_with_a_token(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(repository, "team/model", kind="models", token="hf_secret") as endpoint:
        use(monkeypatch, endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(SkytrainError, match=r"asks for a token with access\n.*hf auth login.*HF_TOKEN") as raised:
            resolve_hub_or_folder("team/model", ["*"])
        assert raised.value.exit_code == 2
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert (resolve_hub_or_folder("team/model", ["*"]) / "model.safetensors").read_bytes() == b"weights"


def test_an_unknown_repository_and_a_missing_folder_are_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(repository, "team/model", kind="models") as endpoint:
        use(monkeypatch, endpoint)
        with pytest.raises(SkytrainError, match=r"team/modal: neither a folder here nor a public repository"):
            resolve_hub_or_folder("team/modal", ["*"])
    with pytest.raises(SkytrainError, match="/no/such/folder: no such folder"):
        resolve_hub_or_folder("/no/such/folder", ["*"])


def test_paths_are_not_names_of_the_hub() -> None:
    assert is_hub_name("gpt2") and is_hub_name("meta-llama/Llama-3.1-8B") and is_hub_name("a/b@main")
    assert not any(map(is_hub_name, ("/a/b", "./a", "../a", "a/b/c", "s3://a/b", "", "a b")))
