"""A small exported model, and servers of it, which all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skytrain.config import BPETokenizerConfig, compose
from skytrain.export import HFExport, export_hf
from skytrain.models import build_model
from skytrain.serving import Endpoint, VllmServer, check_port, find_vllm, open_served, server_settings
from skytrain.tokens import train_bpe
from tests.serving.stand_in import stand_in_python

KEY = "secret"
Start = Callable[..., Endpoint]
TEXT = "The quick brown fox jumps over the lazy dog. Return the value of the argument, or the default."


def exported(family: str, folder: Path, seed: int = 1) -> Path:
    """A tiny model whose heads vLLM's attention for CPUs takes, with weights far enough apart for clear choices."""
    import torch

    tokenizer = train_bpe(BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=300, sample_bytes=10**6), [TEXT] * 5)
    small = ["layers=2", "width=128", "heads=2", "max_length=128", f"vocab_size={tokenizer.vocab_size}"]
    words = [f"model={family}-tiny", "tokenizer=bpe-4k", "tokenizer.vocab_size=257", "trainer.sequence_length=8"]
    model = build_model(compose([*words, *(f"model.{each}" for each in small)]).config.model, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return export_hf(model, tokenizer, folder, HFExport("fp32"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("gpt2", tmp_path_factory.mktemp("exported") / "tiny")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in_python(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="session")
def start(folder: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a server with these arguments. All of them end with the session."""
    logs, servers = tmp_path_factory.mktemp("logs"), list[VllmServer]()

    def started(*arguments: str) -> Endpoint:
        config = compose([f"serve.arguments={list(arguments)}", "serve.cpu_cache_gib=1"]).config.serve
        engine, port = find_vllm(str(python)), check_port("127.0.0.1", 0)
        settings = server_settings(open_served(folder, "tiny"), engine, [], config, ("127.0.0.1", port))
        servers.append(VllmServer(settings, engine, KEY, logs / f"{port}.log"))
        servers[-1].start()
        endpoint = Endpoint(f"http://127.0.0.1:{port}", KEY)
        servers[-1].wait_until_ready(endpoint, 60, lambda seconds, line: None)
        return endpoint

    yield started
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def endpoints(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Endpoint, Endpoint]:
    """A server of a base model, and one with a chat template."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text("{{ messages }}")
    return start(), start(f"--chat-template={template}")
