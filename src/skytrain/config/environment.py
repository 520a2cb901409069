"""All access to environment variables, so that this file lists every variable that Skytrain depends on.

The one exception is `jobs/lifeline.py`, which reads its variable itself because it runs before anything is imported.
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
    """Return the XDG cache folder: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def skytrain_cache_folder() -> Path:
    """Return the folder of refreshed prices and measurements: $SKYTRAIN_CACHE, or skytrain in the user's cache."""
    own = os.environ.get("SKYTRAIN_CACHE")
    return Path(own) if own else user_cache_folder() / "skytrain"


def visible_gpus() -> list[str] | None:
    """Return the GPUs listed in CUDA_VISIBLE_DEVICES, or None if it is not set and all GPUs are visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None else [word for word in visible.split(",") if word.strip() not in ("", "-1")]


def cpp_compiler() -> str:
    """Return the C++ compiler that build tools would use."""
    return os.environ.get("CXX", "c++")


def triton_is_interpreted() -> bool:
    """Return whether Triton's interpreter runs kernels on the CPU; it is slow and meant for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def wait_without_spinning() -> None:
    """Let threads that wait for each other on the CPU sleep, unless OMP_WAIT_POLICY says otherwise.

    Threads that spin take the cores from those that they wait for: on two cores that are busy with other work, a step of
    the quickstart took several times as long. OpenMP reads the variable when torch is imported, and children inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Variables that torchrun sets in each worker: ranks, world size, restarts.


@dataclass(frozen=True)
class TorchrunPlace:
    """The rank of this process among those that torchrun started."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int


def torchrun_place() -> TorchrunPlace | None:
    """Return this process's rank information, or None if it was started without a rank."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return None
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    local_rank = os.environ.get("LOCAL_RANK", rank)
    local_size = os.environ.get("LOCAL_WORLD_SIZE", world)
    return TorchrunPlace(rank, world, int(local_rank), int(local_size))


def is_worker() -> bool:
    """Return whether this process was started as a worker of a job."""
    return "WORLD_SIZE" in os.environ


def has_torchrun_agent() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_keeps_store() -> bool:
    """Return whether torchrun's agent, rather than rank 0, hosts the rendezvous store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def torchrun_restarts() -> int:
    """Return how many times torchrun has restarted this job's workers."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def master_address() -> str | None:
    """Return the rendezvous host."""
    return os.environ.get("MASTER_ADDR") or None


def master_port() -> str | None:
    return os.environ.get("MASTER_PORT") or None


# AWS: the same variables that AWS's own tools read.


def s3_endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def aws_region() -> str | None:
    return os.environ.get("AWS_REGION")


def metadata_endpoint() -> str | None:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")


def metadata_is_disabled() -> bool:
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"


def has_aws_credentials() -> bool:
    """Return whether environment variables provide credentials, without AWS's shared files."""
    return any(os.environ.get(name) for name in CREDENTIAL_VARIABLES)


def has_aws_profile() -> bool:
    """Return whether AWS's shared files apply: a variable selects one, or one exists."""
    shared = (Path(os.environ.get(name, default)).expanduser() for name, default in SHARED_FILES.items())
    return any(os.environ.get(name) for name in PROFILE_VARIABLES) or any(file.is_file() for file in shared)


# Variables of other programs that Skytrain passes on, preserves or sets.


def variable(name: str) -> str | None:
    return os.environ.get(name)


def variables(names: Iterable[str]) -> dict[str, str]:
    """Return the variables among `names` that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a child process: this process's variables, updated with `more`."""
    return {**os.environ, **(more or {})}


def set_variables(values: Mapping[str, str]) -> None:
    """Set variables for libraries that read them later and for child processes."""
    os.environ.update(values)


def set_default(name: str, value: str) -> None:
    """Set a variable unless the user has set it."""
    os.environ.setdefault(name, value)


@contextlib.contextmanager
def temporarily(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables inside a `with` block and restore their previous values afterwards."""
    before = variables(values)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def is_spark_submitted() -> bool:
    """Return whether spark-submit started this program: its JVM is running already and knows the properties."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
