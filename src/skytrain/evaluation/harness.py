"""The bridge to lm-evaluation-harness: its tasks over our model, without an export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lm_eval.api.model import TemplateLM

from ..tokens import Tokenizer
from .continuations import make_continuation, rolling_windows
from .generation import Sampling, generate
from .scorer import Scorer
from .scoring import Progress, score_continuations
from .tasks.encoding import check_vocabulary, start_token

MAX_NEW_TOKENS = 256  # the harness's default


@dataclass(frozen=True)
class HarnessRequest:
    """Tasks by the harness's names. `folder` has the user's task files."""

    tasks: tuple[str, ...]
    limit: int | None = None
    folder: str | None = None


class HarnessModel(TemplateLM):
    """A harness model that answers requests with a `Scorer`. Requests that share a context share its computation."""

    def __init__(self, model: Scorer, tokenizer: Tokenizer, progress: Progress | None = None) -> None:
        super().__init__()
        check_vocabulary(tokenizer, model.config.vocab_size)
        self._model = model
        self._tokenizer = tokenizer
        self._progress = progress

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eot

    @property
    def prefix_token_id(self) -> int:
        return start_token(self._tokenizer)

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids: list[int] = self._tokenizer.encode_batch([string])[0].tolist()
        return ids

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        groups = [
            [make_continuation(context, continuation, self._model.window)[0] for _, context, continuation in together]
            for _, together in groupby(requests, key=lambda request: request[1])
        ]
        scores = score_continuations(self._model, groups, self._progress)
        return list(zip(scores.log_probs.tolist(), scores.greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows = [
            rolling_windows(self.tok_encode(request.args[0]), self.prefix_token_id, self._model.window)
            for request in requests
        ]
        scores = score_continuations(self._model, [[each] for text in windows for each in text], self._progress)
        ends = iter(scores.log_probs.tolist())
        return [sum(next(ends) for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
        most = int(settings.get("max_gen_toks", MAX_NEW_TOKENS))
        text = ""
        pieces = generate(self._model, self._tokenizer, context, Sampling(temperature=temperature), max_tokens=most)
        for piece in pieces:
            text += piece
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends:
                return text[: min(ends)]
        return text


def run_harness(
    model: Scorer, tokenizer: Tokenizer, request: HarnessRequest, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Run the harness's tasks and return its own results."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    results: dict[str, Any] = simple_evaluate(
        model=HarnessModel(model, tokenizer, progress),
        tasks=list(request.tasks),
        limit=request.limit,
        task_manager=TaskManager(include_path=request.folder),
        log_samples=True,
        bootstrap_iters=0,
    )
    return results
