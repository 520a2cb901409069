"""Environment variables: the one place that reads and sets them, so that this file lists all that Skytrain depends on.

`jobs/lifeline.py` alone reads its own variable: it runs before anything is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
SHARED_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


# This machine and its user.


def user_cache_folder() -> Path:
    """Where the desktop's convention puts caches: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def skytrain_cache_folder() -> Path:
    """Where this user's refreshed prices and measurements live: $SKYTRAIN_CACHE, or skytrain in the user's cache."""
    own = os.environ.get("SKYTRAIN_CACHE")
    return Path(own) if own else user_cache_folder() / "skytrain"


def visible_gpus() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names; None where it is not set, and all are visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None else [word for word in visible.split(",") if word.strip() not in ("", "-1")]


def cpp_compiler() -> str:
    """The C++ compiler as build tools find it."""
    return os.environ.get("CXX", "c++")


def triton_is_interpreted() -> bool:
    """Whether Triton's interpreter runs kernels on the CPU, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


# torchrun, which tells each process its place in the job.


@dataclass(frozen=True)
class TorchrunPlace:
    """This process among those that torchrun started."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int


def torchrun_place() -> TorchrunPlace | None:
    """None for a process that nobody gave a rank."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return None
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = os.environ.get("LOCAL_RANK", rank), os.environ.get("LOCAL_WORLD_SIZE", world)
    return TorchrunPlace(rank, world, int(local_rank), int(local_size))


def is_worker() -> bool:
    """Whether this process was started as one of a job's."""
    return "WORLD_SIZE" in os.environ


def has_torchrun_agent() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_keeps_store() -> bool:
    """Whether torchrun's agent, and not rank 0, holds the store through which the ranks meet."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def torchrun_restarts() -> int:
    """How often torchrun has started this job's workers again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def master_address() -> str | None:
    """The host on which the ranks meet."""
    return os.environ.get("MASTER_ADDR") or None


def master_port() -> str | None:
    return os.environ.get("MASTER_PORT") or None


# AWS, by the variables that its own tools read.


def s3_endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def aws_region() -> str | None:
    return os.environ.get("AWS_REGION")


def metadata_endpoint() -> str | None:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")


def metadata_is_disabled() -> bool:
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"


def has_aws_credentials() -> bool:
    """Whether variables lead to credentials, without AWS's shared files."""
    return any(os.environ.get(name) for name in CREDENTIAL_VARIABLES)


def has_aws_profile() -> bool:
    """Whether AWS's shared files have a say: one is chosen by a variable, or is there."""
    shared = (Path(os.environ.get(name, default)).expanduser() for name, default in SHARED_FILES.items())
    return any(os.environ.get(name) for name in PROFILE_VARIABLES) or any(file.is_file() for file in shared)


# Variables of other programs that are passed on, kept or set.


def variable(name: str) -> str | None:
    return os.environ.get(name)


def variables(names: Iterable[str]) -> dict[str, str]:
    """Those that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process to be started: this one's, and more."""
    return {**os.environ, **(more or {})}


def set_variables(values: Mapping[str, str]) -> None:
    """For libraries that read them later, and for processes that this one starts."""
    os.environ.update(values)


def set_default(name: str, value: str) -> None:
    """Unless the user has set it."""
    os.environ.setdefault(name, value)


@contextlib.contextmanager
def temporarily(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables, and puts back what was there."""
    before = variables(values)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)
