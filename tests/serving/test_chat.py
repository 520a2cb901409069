"""`skytrain chat`: turns, a base model, a pipe on stdin, and answers that are stopped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.chat import _talk
from skytrain.cli.main import app
from skytrain.config import SkytrainError, compose
from skytrain.pipelines.chat import ChatSettings, Conversation, EndpointModel, OwnModel
from skytrain.serving import Endpoint
from skytrain.tokens import Message
from tests.serving.conftest import KEY


def test_turns_are_one_conversation_and_reset_forgets_them(endpoints: tuple[Endpoint, Endpoint]) -> None:
    model = EndpointModel(endpoints[1], None, ChatSettings())
    assert not model.base_model
    chat = Conversation(model, "be brief")
    assert "".join(chat.say("one two")) == " be brief / one two"
    assert "".join(chat.say("three")).endswith("/ be brief / one two / three")
    assert [each["role"] for each in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    chat.reset()
    assert "".join(chat.say("four")) == " be brief / four"


def test_stopped_answer_stays_as_far_as_it_was_shown(endpoints: tuple[Endpoint, Endpoint]) -> None:
    chat = Conversation(EndpointModel(endpoints[1], None, ChatSettings()))
    answer = chat.say("one two three")
    assert next(answer) == " one"
    answer.close()  # type: ignore[attr-defined]
    assert chat.messages[-1] == {"role": "assistant", "content": " one"}


def test_base_model_continues_the_text(endpoints: tuple[Endpoint, Endpoint]) -> None:
    model = EndpointModel(endpoints[0], None, ChatSettings(max_tokens=2))
    assert model.base_model
    chat = Conversation(model)
    assert "".join(chat.say("one two three")) == " one two"
    assert chat.text == "one two three one two"


def test_base_model_sees_the_end_of_a_text_that_is_longer_than_its_context(
    endpoints: tuple[Endpoint, Endpoint],
) -> None:
    """The context has 128 tokens, which are words here."""
    chat = Conversation(EndpointModel(endpoints[0], None, ChatSettings(max_tokens=512)))
    for turn in range(3):
        answer = "".join(chat.say(f" {turn}" + " word" * 60)).split()
        assert len(answer) == (61 if turn == 0 else 64) and answer[-1] == "word"


@pytest.mark.parametrize("base_model", [True, False])
def test_failed_turn_leaves_nothing_in_the_conversation(base_model: bool) -> None:
    class Failing:
        label, fails = "failing", True

        def __init__(self) -> None:
            self.base_model = base_model

        def answer(self, messages: list[Message]) -> Iterator[str]:
            return self.continue_text("")

        def continue_text(self, text: str) -> Iterator[str]:
            yield " three"
            if self.fails:
                raise SkytrainError("the stream broke off")

    model = Failing()
    chat = Conversation(model, "be brief")
    with pytest.raises(SkytrainError):
        list(chat.say("one"))
    assert chat.text == "be brief" and [each["role"] for each in chat.messages] == ["system"]
    model.fails = False
    list(chat.say("two"))
    if base_model:
        assert chat.text == "be brieftwo three"
    else:
        assert [each["content"] for each in chat.messages] == ["be brief", "two", " three"]


def test_lines_of_a_pipe_are_turns(endpoints: tuple[Endpoint, Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYTRAIN_API_KEY", KEY)
    done = CliRunner().invoke(app, ["chat", "--url", endpoints[1].url], input="one\n\n/reset\ntwo\n/quit\nthree\n")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [" one", " two"]


def test_a_script_sees_that_any_of_its_turns_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn fails, and the last one does not."""

    class FailsOnce:
        def say(self, words: str) -> Iterator[str]:
            yield words
            if words == "one":
                raise SkytrainError("the stream broke off")

    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    with pytest.raises(SystemExit) as ended:
        _talk(FailsOnce())  # type: ignore[arg-type]
    assert ended.value.code == 2


def test_wrong_key_and_no_server_are_one_message(endpoints: tuple[Endpoint, Endpoint]) -> None:
    for url, key, said in ((endpoints[0].url, "wrong", "401"), ("http://127.0.0.1:9", KEY, "does not answer")):
        done = CliRunner().invoke(app, ["chat", "--url", url], env={"SKYTRAIN_API_KEY": key})
        assert said in str(done.exception)


def test_folder_is_continued_on_this_machine_as_generate_does(folder: Path) -> None:
    from skytrain.evaluation import Sampling
    from skytrain.pipelines.generate import generate

    config = compose(["trainer.device=cpu"]).config
    chat = Conversation(OwnModel(config, str(folder), ChatSettings(max_tokens=8, temperature=0)))
    expected = "".join(generate(config, str(folder), "Return the", Sampling(0.0), max_tokens=8))
    assert "".join(chat.say("Return the")) == expected
