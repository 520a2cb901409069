"""Model folders whose author wishes us ill: what their files say is data, and names no file or code of ours."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import ConfigError, SkytrainError
from skytrain.export import files_of, read_dtype
from skytrain.models import read_headers
from skytrain.serving import open_served
from skytrain.storage import DamagedRecord

GOOD = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def safetensors(header: Any, data: bytes = b"0000") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(**changed: Any) -> bytes:
    entry = {**GOOD["w"], **changed}
    return safetensors({"w": {name: value for name, value in entry.items() if value is not None}})


HEADERS = {
    "no shape": tensor(shape=None),
    "a shape of letters": tensor(shape="ab"),
    "a number as shape": tensor(shape=3),
    "a negative shape": tensor(shape=[-1, -1]),
    "a shape beyond its bytes": tensor(shape=[2**60, 2**60]),
    "NaN as shape": safetensors(b'{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}'),
    "true as shape": tensor(shape=[True]),
    "no type": tensor(dtype=None),
    "a list as type": tensor(dtype=["F32"]),
    "offsets before the data": tensor(data_offsets=[-4, 0]),
    "offsets backwards": tensor(data_offsets=[4, 0]),
    "a text as offsets": tensor(data_offsets="04"),
    "a header a hundred thousand deep": safetensors(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a list": safetensors([1]),
    "a header beyond the file": struct.pack("<Q", 2**63) + b"{}",
    "nothing": b"",
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_describes_no_tensor_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(HEADERS[what])
    with pytest.raises(DamagedRecord, match=r"model\.safetensors is damaged") as error:
        read_headers(tmp_path)
    assert str(error.value).count("download it again") == 1


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "x.bin", 5, None, "a\0b.safetensors", "a" * 5000, ""]
)
def test_an_index_names_files_of_its_own_folder_only(name: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(safetensors(GOOD))
    (folder / "x.bin").write_bytes(safetensors(GOOD))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(SkytrainError, match="which is not a safetensors file of this folder"):
        read_headers(folder)


@pytest.mark.parametrize("text", ["[", "{}", "[1]"])
def test_an_export_without_the_type_of_its_weights_is_damaged_and_has_one_remedy(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DamagedRecord, match=r"config\.json is damaged") as error:
        read_dtype(tmp_path)
    assert str(error.value).splitlines()[1:] == [f"  remove {tmp_path}"]


def test_an_index_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(SkytrainError, match="is damaged"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("key", "kernel"),
    [
        ("attn_implementation", "attacker/kernel"),
        ("_attn_implementation", {"": "attacker/kernel@main:f"}),
        ("experts_implementation", "attacker/kernel"),
        ("parts", [{"text_config": {"attn_implementation": "attacker/kernel"}}]),
    ],
)
def test_a_config_cannot_name_code_of_the_hub_for_its_attention(key: str, kernel: Any, tmp_path: Path) -> None:
    """transformers would fetch that repository and run it, without trust_remote_code."""
    transformers = pytest.importorskip("transformers")
    from skytrain.models.hf_causal_lm import _refuse_named_kernels

    plain = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    (tmp_path / "config.json").write_text(json.dumps({**plain, key: kernel}))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="names code of the hub for its attention"):
        _refuse_named_kernels(theirs, str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**plain, key: "sdpa"}))
    _refuse_named_kernels(transformers.AutoConfig.from_pretrained(tmp_path), str(tmp_path))


def test_a_link_to_a_file_of_yours_is_not_uploaded_and_the_hubs_cache_is(tmp_path: Path) -> None:
    secret = tmp_path / "credentials"
    secret.write_text("aws_secret_access_key = ...")
    folder = tmp_path / "hub" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    blob = tmp_path / "hub" / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_bytes(b"{}")
    (folder / "config.json").symlink_to(Path("..", "..", "blobs", "abc"))
    (folder / "again.json").symlink_to("config.json")
    assert [path.name for path in files_of(folder)] == ["again.json", "config.json"]
    (folder / "notes.txt").symlink_to(secret)
    with pytest.raises(SkytrainError, match=r"notes.txt is a link to .*credentials"):
        files_of(folder)


SERVED = {
    "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 16, "max_position_embeddings": 8,
}  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, True, "8", [], {}, float("nan"), 1.5])
@pytest.mark.parametrize("key", [*SERVED, "num_key_value_heads", "head_dim", "intermediate_size"])
def test_a_config_that_describes_no_model_is_not_served(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors(GOOD))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps(SERVED))
    assert open_served(tmp_path, "tiny").shape("float32").heads == 2
    (tmp_path / "config.json").write_text(json.dumps({**SERVED, key: value}))
    with pytest.raises(SkytrainError, match=f"config.json has no number {key} above 0"):
        open_served(tmp_path, "tiny")
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(SkytrainError, match="is damaged"):
        open_served(tmp_path, "tiny")


def test_an_adapter_in_a_folder_is_not_read(tmp_path: Path) -> None:
    """Where peft is installed, transformers adds it, and peft imports the module that it names (megatron_core)."""
    transformers = pytest.importorskip("transformers")
    from skytrain.config import HFModelConfig
    from skytrain.models.hf_causal_lm import build_hf

    tiny = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    transformers.GPT2LMHeadModel(tiny).save_pretrained(tmp_path)
    settings = HFModelConfig(
        name=str(tmp_path), family="hf", weights="pretrained", revision=None, trust_remote_code=False, vocab_size=16, max_length=8
    )  # fmt: skip
    assert build_hf(settings, seed=0, start_weights=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "megatron_core": "attack"}))
    with pytest.raises(ConfigError, match="has an adapter of PEFT"):
        build_hf(settings, seed=0, start_weights=True)


def test_a_repository_of_the_hub_is_judged_as_its_folder_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would fetch an adapter with it, which no setting names."""
    transformers = pytest.importorskip("transformers")
    from huggingface_hub import constants

    from skytrain.config import HFModelConfig
    from skytrain.models.hf_causal_lm import build_hf

    repository = tmp_path / "models--attacker--model"
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit
    tiny = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    transformers.GPT2LMHeadModel(tiny).save_pretrained(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    settings = HFModelConfig(
        name="attacker/model", family="hf", weights="pretrained", revision=None, trust_remote_code=False, vocab_size=16, max_length=8
    )  # fmt: skip
    assert build_hf(settings, seed=0, start_weights=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "megatron_core": "attack"}))
    with pytest.raises(ConfigError, match="has an adapter of PEFT"):
        build_hf(settings, seed=0, start_weights=True)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt2"])
def test_a_config_with_endless_numbers_does_not_take_for_ever(kind: str, tmp_path: Path) -> None:
    from skytrain.models import read_hf_decoder

    layers = {"num_hidden_layers": 10**30, "n_layer": 10**30}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": kind, "vocab_size": 16, "num_experts": 2, **layers})
    )
    with pytest.raises(SkytrainError, match="more than any model has"):
        read_hf_decoder(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_type": []}, {"text_config": []}, {"quantization_config": "x"}, {"rope_parameters": -1}, {"num_hidden_layers": []},
        {"decoder_sparse_step": 0}, {"router_aux_loss_coef": "x"}, {"layer_types": -1},
    ],
)  # fmt: skip
def test_a_config_with_values_of_another_type_is_one_message(wrong: dict[str, Any], tmp_path: Path) -> None:
    from skytrain.models.agreement import adopt_model

    qwen = {
        "model_type": "qwen3_moe", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 8, "moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1,
        "max_position_embeddings": 8, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**qwen, **wrong}))
    with contextlib.suppress(SkytrainError):  # or a model without what is wrong
        adopt_model(str(tmp_path))
