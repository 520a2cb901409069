"""What a target of `skytrain serve` is given, and what it must do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..config import Composed, Config, format_bytes
from ..export import SUMS, files_of, hash_file
from ..planning import Market
from ..runs import Reporter
from ..serving import ServedModel
from ..storage import Store

if TYPE_CHECKING:
    from ..aws import AwsSession
    from ..export import Dtype

Confirm = Callable[["AwsSession", str, float], None]  # raises, or ends the command, unless the answer is yes


def _no_question(session: AwsSession, question: str, usd_per_hour: float) -> None:
    return


OPTIONS = ("host", "port", "api_key_file", "tls", "certificate", "certificate_key", "hours", "market")


@dataclass(frozen=True)
class ServeRequest:
    """What the user asked for."""

    source: str | None = None  # a run, RUN@STEP, a folder, a merged model; None: the newest run
    target: str = "local"
    name: str | None = None  # that requests give; None: the run and step, or the folder's name
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_key_file: Path | None = None
    tls: bool | None = None  # None: where others can reach the endpoint
    certificate: Path | None = None  # None: one is made
    certificate_key: Path | None = None
    dry_run: bool = False
    hours: float | None = None  # for which a machine is rented
    market: Market | None = None

    def given(self) -> list[str]:
        """Return the options that were given of those which not every target reads."""
        plain = ServeRequest()
        return [name for name in OPTIONS if getattr(self, name) != getattr(plain, name)]


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


@dataclass(frozen=True)
class ServingState:
    """What a target serves under one name."""

    model: str
    source: str
    wanted: int
    ready: int
    reason: str | None  # why a pod waits, or has failed

    @property
    def text(self) -> str:
        if not self.wanted:
            return "nothing is served"
        return f"{self.model}: {self.ready} of {self.wanted} pods answer" + (f"; {self.reason}" if self.reason else "")


EXPORTED: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # by serve.dtype


class ServeTarget(Protocol):
    """One place to serve from. Its module sets `TARGET` to an instance."""

    name: str
    reads: tuple[str, ...]  # of OPTIONS; the others are refused
    cloud: str | None  # the group `cloud` that it has where the user names none; None: it serves on this computer

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


def plain_name(name: str) -> str:
    """Return a model's name as a part of other names."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")


def model_key(name: str, sha256: str) -> str:
    """Return where a model is in the store: a folder named by its content."""
    return f"exports/{plain_name(name)}-{sha256[:12]}"


def upload_model(store: Store, model: ServedModel, key: str, reporter: Reporter) -> None:
    """Copy the folder to the store, its hashes last. One that is there is not copied again."""
    if store.exists(f"{key}/{SUMS}"):
        return
    paths = [path for path in files_of(model.folder) if path.name != SUMS]
    total = sum(path.stat().st_size for path in paths)
    done = 0.0
    lines = []

    def advanced(_: str, size: float) -> None:
        nonlocal done
        done += size
        reporter.progress("upload", done, total, f"{format_bytes(done)} of {format_bytes(total)}")

    for path in paths:
        name = path.relative_to(model.folder).as_posix()
        lines.append(f"{store.upload(path, f'{key}/{name}', advanced, hash_file(path))}  {name}\n")
    store.write(f"{key}/{SUMS}", "".join(lines).encode())


def read_key(session: AwsSession, name: str) -> str:
    """Return the API key of an endpoint, decrypted. The role of a rented machine may read its own."""
    from ..aws import Call

    answer = session.perform(Call("ssm", "GetParameter", {"Name": name, "WithDecryption": True}))
    return str(answer["Parameter"]["Value"])
