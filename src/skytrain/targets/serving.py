"""What a target of `skytrain serve` is given, and what it must do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..config import Composed, Config
from ..planning import Market
from ..runs import Reporter
from ..serving import ServedModel

if TYPE_CHECKING:
    from ..aws import AwsSession
    from ..export import Dtype


Confirm = Callable[["AwsSession", str, float], None]  # raises, or ends the command, unless the answer is yes


def _no_question(session: AwsSession, question: str, usd_per_hour: float) -> None:
    return


@dataclass(frozen=True)
class ServeRequest:
    """What the user asked for."""

    source: str | None = None  # a run, RUN@STEP, a folder, a merged model; None: the newest run
    target: str = "local"
    name: str | None = None  # that requests give; None: the run and step, or the folder's name
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_key_file: Path | None = None
    dry_run: bool = False
    hours: float | None = None  # for which a machine is rented
    market: Market | None = None


@dataclass(frozen=True)
class ServeJob:
    """A request with its configuration."""

    composed: Composed
    request: ServeRequest
    folders: tuple[Path, ...] = ()  # of the user's own configuration
    confirm: Confirm = _no_question

    @property
    def config(self) -> Config:
        return self.composed.config

    @property
    def source(self) -> str | None:
        return self.request.source or self.config.serve.source


EXPORTED: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # by serve.dtype


class ServeTarget(Protocol):
    """One place to serve from. Its module sets `TARGET` to an instance."""

    name: str

    def check(self, job: ServeJob) -> Dtype:
        """Raise SkytrainError (ServeRefused: exit code 3) for what is wrong before the model is exported.

        Returns the type of weights that an export should have.
        """
        ...

    def serve(self, job: ServeJob, model: ServedModel, reporter: Reporter) -> int:
        """Serve the verified folder, and return the exit code. A target that only starts machines returns at once."""
        ...


def key_command(parameter: str, region: str | None) -> str:
    """Return the command that prints the API key of a rented machine."""
    return (
        f"aws ssm get-parameter --region {region} --name {parameter} --with-decryption "
        "--query Parameter.Value --output text"
    )
