"""The client of an endpoint that sends what the protocol has not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import SkytrainError
from skytrain.pipelines.bench_serve import LoadTest, bench_serve, choose_prompts
from skytrain.pipelines.chat import ChatSettings, EndpointModel
from skytrain.runs import Silent
from skytrain.serving import Endpoint, EndpointError

GOOD = '{"choices": [{"text": "word"}]}'


class Odd(BaseHTTPRequestHandler):
    models, event = '{"data": [{"id": "tiny"}]}', GOOD

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._answer(self.models)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(f"data: {GOOD}\n\ndata: {self.event}\n\ndata: [DONE]\n\n")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("models", "event"):
        monkeypatch.setattr(Odd, name, getattr(Odd, name))  # put back afterwards
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Endpoint(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "event",
    ["{no", "[1]", "5", '{"choices": [null]}', '{"choices": "a"}', '{"choices": [{"text": 5}]}', '{"usage": "many"}'],
)
def test_event_that_cannot_be_read_is_an_error_of_the_endpoint(endpoint: Endpoint, event: str) -> None:
    Odd.event = event
    with pytest.raises(EndpointError, match="an event of the stream cannot be read"):
        list(endpoint.stream("/v1/completions", {}))


def test_usage_without_numbers_is_left_out(endpoint: Endpoint) -> None:
    Odd.event = '{"choices": [], "usage": {"completion_tokens": null, "prompt_tokens": 3}}'
    assert [event.usage for event in endpoint.stream("/v1/completions", {})] == [None, {"prompt_tokens": 3}]


@pytest.mark.parametrize("models", ['{"data": [{"name": "tiny"}]}', '{"data": "tiny"}', "[]", '{"data": null}'])
def test_list_of_models_without_names_is_refused(endpoint: Endpoint, models: str) -> None:
    Odd.models = models
    with pytest.raises(EndpointError, match="does not answer as an OpenAI-compatible endpoint"):
        endpoint.models()


def test_broken_address_is_refused() -> None:
    with pytest.raises(EndpointError, match="not the address of an endpoint"):
        Endpoint("http://[::1").models()


def test_prompts_longer_than_all_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [SimpleNamespace(text="three words only")]
    monkeypatch.setattr("skytrain.corpus.sources.python_docs.PythonDocs.documents", lambda self: iter(short))
    with pytest.raises(SkytrainError, match="--prompt-words 4: all of"):
        choose_prompts(LoadTest((1,), 1, 4, prompt_words=4))


def test_folder_that_cannot_be_written_is_found_before_the_sweep(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["bench", "serve", "--url", endpoint.url, "--out", str(tmp_path / "file/load")])
    assert done.exception is not None
    assert "cannot be written" in str(done.exception) + done.output
    assert "at once" not in done.output


def test_server_without_conversations_has_a_base_model_and_its_errors_are_read(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Odd) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(404)

    answer = Odd.do_POST
    monkeypatch.setattr(Odd, "do_POST", refuse)
    model = EndpointModel(endpoint, None, ChatSettings())
    assert model.base_model
    monkeypatch.setattr(Odd, "do_POST", answer)
    Odd.event = '{"error": {"message": "engine died", "code": 500}}'
    with pytest.raises(EndpointError, match=r"^the server reported an error: engine died$"):
        list(model.continue_text("word"))


def test_answer_without_tokens_is_an_error_of_a_load_test(endpoint: Endpoint) -> None:
    Odd.event = '{"choices": [], "usage": {"completion_tokens": 0}}'
    [level] = bench_serve(endpoint, LoadTest((1,), 2, 4), Silent()).levels
    assert level.errors == {"an empty answer": 2}
