"""A client of an OpenAI-compatible endpoint: plain requests and streams of server-sent events, over http and https."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..config import SkytrainError
from ..storage import RECORD_BYTES, parse_json

Connection = http.client.HTTPConnection


class EndpointError(SkytrainError):
    """A request failed: with a status if the server responded, without one if it did not."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream: the text that it adds, and the usage, which comes last."""

    text: str
    usage: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Endpoint:
    """The address of a server, with or without /v1 at its end."""

    url: str
    api_key: str | None = None
    timeout_seconds: float = 300.0  # between two parts of a response
    ca: Path | None = None  # certificates that are trusted in place of the system's

    @property
    def base(self) -> str:
        url = self.url if "://" in self.url else f"http://{self.url}"
        return url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[dict[str, Any]]:
        """Return the models that the server offers."""
        with closing(self._connect()) as connection:
            response = self._request(connection, "GET", "/v1/models", None)
            try:
                models = [dict(each) for each in parse_json(_answer(response))["data"]]
                if all("id" in each for each in models):
                    return models
                raise KeyError("id")
            except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
                raise EndpointError(f"{self.base} does not answer as an OpenAI-compatible endpoint") from None

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return its complete answer."""
        with closing(self._connect()) as connection:
            response = self._request(connection, "POST", path, body)
            try:
                answer: dict[str, Any] = parse_json(_answer(response))
                return answer
            except (ValueError, OSError, http.client.HTTPException) as error:
                raise EndpointError(f"{self.base}{path}: the answer cannot be read: {error}") from None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """Yield the parts of a completion or chat completion as they come. Closing the iterator ends the request."""
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with closing(self._connect()) as connection:
            response = self._request(connection, "POST", path, wanted)
            ended = False
            try:
                for line in response:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        ended = True
                        break
                    yield _event(parse_json(data))
            except EndpointError:
                raise
            except ValueError as error:
                raise EndpointError(f"{self.base}{path}: an event of the stream cannot be read: {error}") from None
            except (OSError, http.client.HTTPException) as error:
                raise EndpointError(
                    f"{self.base}{path}: the stream broke off: {error or type(error).__name__}"
                ) from None
            if not ended:
                raise EndpointError(f"{self.base}{path}: the stream broke off before its end")

    def _connect(self) -> Connection:
        try:
            parts = urlsplit(self.base)
        except ValueError as error:
            raise EndpointError(f"{self.url!r} is not the address of an endpoint: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(f"{self.url!r} is not the address of an endpoint\n  for example: http://127.0.0.1:8000")
        try:
            port = parts.port
        except ValueError as error:
            raise EndpointError(f"{self.url!r}: {error}") from None
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            except (OSError, ssl.SSLError) as error:
                raise EndpointError(f"--ca {self.ca}: {error}\n  give a file of certificates, in PEM form") from None
            return http.client.HTTPSConnection(parts.hostname, port, timeout=self.timeout_seconds, context=context)
        return http.client.HTTPConnection(parts.hostname, port, timeout=self.timeout_seconds)

    def _request(
        self, connection: Connection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        prefix = urlsplit(self.base).path
        try:
            connection.request(method, f"{prefix}{path}", data, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"{self.base} does not answer: {error or type(error).__name__}") from None
        if response.status >= 400:
            raise EndpointError(*_refusal(self.base, response))
        return response


def _answer(response: http.client.HTTPResponse) -> bytes:
    """Return the body of an answer. Whoever runs the server decides how long it is."""
    body = response.read(RECORD_BYTES + 1)
    if len(body) > RECORD_BYTES:
        raise ValueError(f"it has more than {RECORD_BYTES:,} bytes")
    return body


def _refusal(base: str, response: http.client.HTTPResponse) -> tuple[str, int]:
    try:
        text = response.read(4096).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    try:
        said = parse_json(text)
        message = said.get("error", said)
        text = message.get("message", text) if isinstance(message, dict) else str(message)
    except (ValueError, AttributeError):
        pass
    hint = "\n  give its key: --api-key-file, or SKYTRAIN_API_KEY" if response.status == 401 else ""
    return f"{base} answered {response.status}: {text.strip()[:500]}{hint}", response.status


def _event(data: Any) -> StreamEvent:
    """Parse one event. Servers and proxies send more than the protocol defines; ValueError says what was read."""
    if not isinstance(data, dict):
        raise ValueError(f"{data!r:.80} is not an object")
    if "error" in data:
        said = data["error"]
        message = said.get("message", said) if isinstance(said, dict) else said
        raise EndpointError(f"the server reported an error: {message}")
    choices = data.get("choices") or [{}]
    usage = data.get("usage")
    first = choices[0] if isinstance(choices, list) else None
    delta = first.get("delta") or {} if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(delta, dict):
        raise ValueError(f"{choices!r:.80} is not a list of choices")
    if usage is not None and not isinstance(usage, dict):
        raise ValueError(f"{usage!r:.80} is not a usage")
    text = first.get("text")
    if text is None:
        text = delta.get("content")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is not text")
    counts = {name: count for name, count in usage.items() if isinstance(count, int)} if usage else None
    return StreamEvent(text or "", counts)
