"""`skytrain serve` with vLLM itself: the same tokens as our own generation, chat, streams, keys, load, and its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skytrain.bench import LoadSettings, run_load
from skytrain.config import compose
from skytrain.evaluation import place_model
from skytrain.jobs.processes import descendants
from skytrain.pipelines.chat import ChatSettings, Conversation, EndpointModel, OwnModel
from skytrain.runs import Silent
from skytrain.serving import Endpoint, EndpointError
from skytrain.storage import open_store
from tests.serving.conftest import TEXT, exported
from tests.serving.test_serve import Served, ended, served
from tests.support.smollm2 import smollm2_folder
from tests.support.vllm import vllm_python

CLEAR = 1e-4  # between the two largest logits; closer ones may be ordered either way
OPENAI = """
import json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2])
asked = dict(model="served", messages=[{"role": "user", "content": sys.argv[3]}], max_tokens=24, temperature=0)
parts = [part.choices[0].delta.content or "" for part in client.chat.completions.create(stream=True, **asked) if part.choices]
print("found", json.dumps([parts, client.chat.completions.create(**asked).choices[0].message.content]))
"""


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """GPT-2 with random weights, and SmolLM2, a trained model of Llama's family with a chat template."""
    place = tmp_path_factory.mktemp(request.param)
    folder = exported("gpt2", place / "model") if request.param == "gpt2" else smollm2_folder()
    words = [str(folder), "--name", "served", f"serve.python={vllm_python()}", "serve.cpu_cache_gib=1"]
    with served([*words, "serve.max_length=128"], place) as server:
        yield server, folder


@pytest.mark.slow
def test_vllm_serves_what_we_generate(case: tuple[Served, Path], tmp_path: Path) -> None:
    """One test for each model, since a server takes a minute to start."""
    server, folder = case
    endpoint = Endpoint(server.url, server.key)
    assert [each["id"] for each in endpoint.models()] == ["served"]
    for prompt in (TEXT[:40], "Return the", "The capital of France is"):
        _same_tokens(endpoint, folder, prompt)
    with pytest.raises(EndpointError) as refused:
        Endpoint(server.url, "wrong").models()
    assert refused.value.status == 401
    if folder == smollm2_folder():
        _same_chat(server, folder)
    else:
        assert EndpointModel(endpoint, None, ChatSettings()).base_model
        _bears_load(endpoint)
    _leaves_nothing(server)


def _same_tokens(endpoint: Endpoint, folder: Path, prompt: str, tokens: int = 24) -> None:
    config = compose(["trainer.device=cpu"]).config
    placed = place_model(config, open_store(config.store), str(folder))
    seen = placed.tokenizer.encode_prompt(prompt)
    body = {"model": "served", "prompt": list(seen), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = endpoint.post("/v1/completions", {**body, "return_token_ids": True})
    theirs = answer["choices"][0]["token_ids"]
    assert len(theirs) == tokens
    for number, token in enumerate(theirs):
        logits = placed.model.last_logits(seen)[: placed.tokenizer.vocab_size].float()
        first, second = logits.topk(2).values.tolist()
        if int(logits.argmax()) != token:
            assert first - second < CLEAR, (prompt, number, token, int(logits.argmax()), first - second)
            return
        seen.append(token)


def _same_chat(server: Served, folder: Path) -> None:
    words = "What is the capital of France?"
    settings = ChatSettings(max_tokens=24, temperature=0)
    ours = "".join(Conversation(OwnModel(compose(["trainer.device=cpu"]).config, str(folder), settings)).say(words))
    theirs = "".join(Conversation(EndpointModel(Endpoint(server.url, server.key), None, settings)).say(words))
    assert theirs == ours and "Paris" in ours
    done = subprocess.run(
        [vllm_python(), "-c", OPENAI, server.url, server.key, words], capture_output=True, text=True, env={}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts, whole = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found "))[6:])
    assert "".join(parts) == whole == ours and len(parts) > 3


def _bears_load(endpoint: Endpoint) -> None:
    settings = LoadSettings("served", [8], 200, 8)
    [level] = run_load(endpoint, settings, [f"{TEXT[:20]} {number}" for number in range(208)], Silent())
    assert (level.completed, level.errors, level.tokens) == (200, {}, 1600)


def _leaves_nothing(server: Served) -> None:
    started = descendants(server.process.pid)
    assert len(started) >= 3  # the keeper, the server and its engine
    server.process.kill()
    assert all(ended(pid, 60) for pid in started)
