"""Chat: a conversation with an endpoint, or with a run or folder on this machine; an answer comes piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ..config import Config, SkytrainError
from ..serving import Endpoint, EndpointError
from ..tokens import Message

NO_TEMPLATE = ("chat template", "chat_template")  # in the refusal of a server whose model has none
NO_CHAT = (404, 405, 501)  # of a server that has no conversations at all


@dataclass(frozen=True)
class ChatSettings:
    """The settings that decide how answers are generated."""

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float | None = None
    seed: int = 0
    system: str | None = None


class ChatModel(Protocol):
    """A model that continues a conversation, or a text if it is a base model."""

    label: str
    base_model: bool

    def answer(self, messages: list[Message]) -> Iterator[str]: ...
    def continue_text(self, text: str) -> Iterator[str]: ...


class EndpointModel:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: Endpoint, name: str | None, settings: ChatSettings) -> None:
        models = endpoint.models()
        known = [str(each["id"]) for each in models]
        if name is not None and name not in known:
            raise SkytrainError(f"{endpoint.base} has no model {name!r}\n  one of {', '.join(known)}")
        if not known:
            raise SkytrainError(f"{endpoint.base} has no model")
        self._endpoint = endpoint
        self._name = name or known[0]
        self._settings = settings
        self.label = f"{self._name} at {endpoint.base}"
        self.base_model = False
        # Servers of vLLM say how long a text may be; others take care of it themselves.
        length = models[known.index(self._name)].get("max_model_len")
        self._length = length if isinstance(length, int) and length > 1 else None
        self._find_template()

    def _find_template(self) -> None:
        """Find out whether this is a base model: without a chat template its server refuses a conversation."""
        probe = {"model": self._name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        try:
            self._endpoint.post("/v1/chat/completions", probe)
        except EndpointError as error:
            refused = error.status == 400 and any(word in str(error) for word in NO_TEMPLATE)
            if not refused and error.status not in NO_CHAT:
                raise
            self.base_model = True

    def answer(self, messages: list[Message]) -> Iterator[str]:
        return self._stream("/v1/chat/completions", {"messages": messages})

    def continue_text(self, text: str) -> Iterator[str]:
        body: dict[str, Any] = {"prompt": text}
        if self._length:  # the model sees the end of a long text, as it does without a server
            kept = max(self._length - self._settings.max_tokens, self._length // 2)
            body |= {"truncate_prompt_tokens": kept, "truncation_side": "left"}
        return self._stream("/v1/completions", body)

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        settings = self._settings
        longest = min(settings.max_tokens, self._length - 1) if self._length else settings.max_tokens
        sampling = {"max_tokens": longest, "temperature": settings.temperature, "seed": settings.seed}
        if settings.top_p is not None:
            sampling["top_p"] = settings.top_p
        for event in self._endpoint.stream(path, {"model": self._name, **body, **sampling}):
            if event.text:
                yield event.text


class OwnModel:
    """A run or folder, on this machine's device."""

    def __init__(self, config: Config, source: str | None, settings: ChatSettings) -> None:
        from ..evaluation import Sampling, place_model
        from ..storage import open_store

        self._placed = place_model(config, open_store(config.store), source)
        self._settings = settings
        self._sampling = Sampling(settings.temperature, top_p=settings.top_p, seed=settings.seed)
        self.label = self._placed.label
        self.base_model = self._placed.tokenizer.chat_template is None

    def answer(self, messages: list[Message]) -> Iterator[str]:
        from ..evaluation import generate_after
        from ..tokens import conversation_tokens

        placed = self._placed
        # Only a tokenizer of Hugging Face has a chat template.
        tokens = conversation_tokens(cast(Any, placed.tokenizer), messages)
        return generate_after(
            placed.model, placed.tokenizer, tokens, self._sampling, max_tokens=self._settings.max_tokens
        )

    def continue_text(self, text: str) -> Iterator[str]:
        from ..evaluation import generate

        placed = self._placed
        return generate(placed.model, placed.tokenizer, text, self._sampling, max_tokens=self._settings.max_tokens)


class Conversation:
    """The turns so far. A turn that the user stopped is kept as shown; a failed turn leaves nothing."""

    def __init__(self, model: ChatModel, system: str | None = None) -> None:
        self._model = model
        self._system = system
        self.reset()

    def reset(self) -> None:
        self.messages: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        self.text = self._system or ""

    def say(self, text: str) -> Iterator[str]:
        """Yield the answer to the user's text; for a base model, how the text continues."""
        said: list[str] = []
        if self._model.base_model:
            prompt = self.text + text
            pieces = self._model.continue_text(prompt)
        else:
            messages = [*self.messages, {"role": "user", "content": text}]
            pieces = self._model.answer(messages)
        failed = False
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
        except Exception:  # neither Ctrl-C nor a closed iterator
            failed = True
            raise
        finally:
            answer = "".join(said)
            if self._model.base_model and not failed:
                self.text = prompt + answer
            elif answer.strip() and not failed:
                self.messages = [*messages, {"role": "assistant", "content": answer}]
            close = getattr(pieces, "close", None)
            if close is not None:
                close()  # ends the request of a stopped answer
