"""`skytrain chat`: a conversation in the terminal, with an endpoint or with a run or folder directly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigDirs, Trusted, compose_overrides
from .output import drawn_output, tell
from .reads import split_words

if TYPE_CHECKING:
    from ..pipelines.chat import ChatModel, ChatSettings, Conversation

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE] KEY=VALUE",
        help="A run, RUN@STEP or folder to run on this machine. Default: the newest run. Not with --url.",
        show_default=False,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="An OpenAI-compatible endpoint: http://127.0.0.1:8000.", show_default=False),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="A file with the endpoint's key. Default: SKYTRAIN_API_KEY.",
        show_default=False,
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="Certificates, in PEM form, that prove an https endpoint, such as the one that `skytrain serve` made. "
        "Default: the system's.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="Which of the endpoint's models. Default: the first.", show_default=False
    ),
]
System = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What the model is told before the first turn.", show_default=False)
]
MaxTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0.0, metavar="T", help="Sampling temperature; 0: no sampling.")]
TopP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, metavar="P", help="Sample from the likeliest tokens up to P.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same answers.")]
PROMPT = "> "
HELP = "/reset starts again, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    arguments: Arguments = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    url: Url = None,
    api_key_file: KeyFile = None,
    ca: Authority = None,
    model: ModelName = None,
    system: System = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = None,
    seed: Seed = 0,
) -> None:
    """Talk to a served model, or to a run or folder.

    Uses the model's chat template. A base model has none: it continues the text of what you type and what it wrote.
    With a pipe on stdin, each line is a turn.

    \b
    Examples:
      skytrain chat --url http://127.0.0.1:8000
      skytrain chat my-run@5000 --temperature 0
      echo "Return the" | skytrain chat my-model --max-tokens 20
    """
    from ..config import SkytrainError
    from ..pipelines.chat import ChatSettings, Conversation

    given = arguments or []
    sources, words = split_words(given)
    if url is not None and given:
        raise SkytrainError(f"--url chats with an endpoint: leave out {' '.join(given)}, or --url")
    if len(sources) > 1:
        raise SkytrainError(f"give one model, not {len(sources)}: {', '.join(sources)}")
    settings = ChatSettings(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, system=system)
    if url is not None:
        chat_model: ChatModel = _endpoint(url, api_key_file, ca, model, settings)
    else:
        if model is not None or api_key_file is not None or ca is not None:
            raise SkytrainError("--model and --api-key-file are about an endpoint\n  add --url")
        from ..pipelines.chat import OwnModel

        config = compose_overrides(words, config_dir, trusted=trust).config
        chat_model = OwnModel(config, sources[0] if sources else None, settings)
    kind = "a base model: it continues your text" if chat_model.base_model else "chat"
    tell(f"{chat_model.label} ({kind}); {HELP}")
    _talk(Conversation(chat_model, system))


def _endpoint(url: str, key_file: Path | None, ca: Path | None, name: str | None, settings: ChatSettings) -> ChatModel:
    from ..pipelines.chat import EndpointModel
    from ..serving import Endpoint, choose_api_key

    key = choose_api_key(key_file, new=False)
    return EndpointModel(Endpoint(url, key.value if key else None, ca=ca), name, settings)


def _talk(conversation: Conversation) -> None:
    from ..config import SkytrainError, visible

    failed = False
    for words in _turns():
        if words.strip() == "/reset":
            conversation.reset()
            print("a new conversation", file=sys.stderr)
            continue
        failed = failed and not sys.stdin.isatty()  # a script must see any failure, a person has seen it
        answer = conversation.say(words)
        try:
            for piece in answer:
                if sys.stdout.isatty():
                    print(visible(piece), end="", flush=True)
                else:  # a program gets the text as the model wrote it
                    print(piece, end="", flush=True, file=drawn_output())
        except KeyboardInterrupt:
            print(" (stopped)", file=sys.stderr, end="")
        except SkytrainError as error:
            tell(f"error: {error}")
            failed = True
        finally:
            answer.close()  # type: ignore[attr-defined]
        print(flush=True)
    if failed:
        raise SystemExit(SkytrainError.exit_code)


def _turns() -> Iterator[str]:
    """Yield what the user types, line by line, until /quit or the end of the input."""
    asks = sys.stdin.isatty()
    while True:
        try:
            if asks:
                text = input(PROMPT)
            else:
                text = sys.stdin.readline()
                if not text:
                    return
                text = text.rstrip("\n")
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not asks:
                raise
            tell(f"\n{HELP}")
            continue
        if text.strip() == "/quit":
            return
        if text.strip():
            yield text
