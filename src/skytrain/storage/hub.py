"""Models and tokenizers by name: a folder on this machine or in a bucket, or a repository on the Hugging Face hub.

Downloads go to a cache, so a second use is offline. The token is that of `hf auth login`, or HF_TOKEN.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, cast

from ..config import MissingExtra, SkytrainError, user_cache_folder
from .opening import open_store

RepositoryKind = Literal["model", "dataset"]
ASK_SECONDS = 10.0
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")


def is_hub_name(name: str) -> bool:
    """Return whether `name` can name a repository: `owner/name` or `name`, optionally with `@revision`."""
    return HUB_NAME.fullmatch(name) is not None


def resolve_hub_or_folder(name: str, patterns: Sequence[str]) -> Path:
    """Return the folder `name`, or a local copy of its files that match `patterns`, from a bucket or the hub.

    `s3://bucket/folder` names a folder of a bucket.
    `owner/name@revision` names a branch, a tag or a commit. Raises `SkytrainError` if neither exists, if the hub cannot
    be reached, or if it asks for a token.
    """
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if "://" in name:
        return _download_folder(name, patterns)
    if not is_hub_name(name):
        raise SkytrainError(f"{name}: no such folder\n  give a folder, or a name on the Hugging Face hub: owner/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "data") from None
    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns)))
    except (hub_http_error(), OSError, ValueError) as error:
        raise explain_hub_error(name, error) from None


def _download_folder(url: str, patterns: Sequence[str]) -> Path:
    """Return the cached copy of a bucket's folder. Changed objects change its name, so that no two versions mix."""
    store = open_store(url)
    here = store.local_path("")
    if here is not None and here.is_dir():
        return here
    stats = [stat for stat in store.list() if stat.key.count("/") <= 1]  # named chat templates are in a folder
    if not stats:
        raise SkytrainError(f"{url}: no such folder, or it has no files\n  correct the URL")
    version = hashlib.sha256("\n".join([url, *(f"{stat.key} {stat.etag}" for stat in stats)]).encode()).hexdigest()
    folder = user_cache_folder() / "skytrain" / "models" / version[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for stat in stats:
        if any(_matches(stat.key, pattern) for pattern in patterns) and not (folder / stat.key).exists():
            (folder / stat.key).parent.mkdir(exist_ok=True)
            store.download(stat.key, folder / stat.key)
    return folder


def asks_for_token(name: str, kind: RepositoryKind) -> bool:
    """Return whether the hub gives a repository to nobody without a token; False where the hub cannot be asked."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError
    except ImportError:
        return False
    repository, _, revision = name.partition("@")
    try:
        info = HfApi(token=False).repo_info(repository, revision=revision or None, repo_type=kind, timeout=ASK_SECONDS)
    except RepositoryNotFoundError:  # private, or gated
        return True
    except (hub_http_error(), OSError, ValueError):
        return False
    return bool(getattr(info, "gated", False))


def _matches(key: str, pattern: str) -> bool:
    return key.count("/") == pattern.count("/") and fnmatch(key, pattern)


def hub_http_error() -> type[Exception]:
    """Return the base class of the errors that requests to the hub raise.

    The hub's HTTP library differs between versions of huggingface_hub, which derives its error from that library's.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return cast("type[Exception]", HfHubHTTPError.__mro__[1])


def explain_hub_error(name: str, error: Exception) -> SkytrainError:
    """Return what is wrong, and what to do, for an error that a request to the hub raised."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    login = "run `hf auth login`, or set HF_TOKEN to a token that may read it"
    # The hub answers 401 both for what does not exist and for what is private.
    if isinstance(cause, GatedRepoError) or status == 403:
        return SkytrainError(
            f"{name}: the Hugging Face hub asks for a token with access\n"
            f"  accept the terms on the repository's page, then {login}"
        )
    if isinstance(cause, RevisionNotFoundError):
        return SkytrainError(f"{name}: the repository has no such revision\n  give a branch, a tag or a commit after @")
    if isinstance(cause, RepositoryNotFoundError) or status == 401:
        return SkytrainError(
            f"{name}: neither a folder here nor a public repository on the Hugging Face hub\n"
            f"  correct the name; for a private repository, {login}"
        )
    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return SkytrainError(
            f"{name}: not a folder here, not in the hub's cache, and the Hugging Face hub cannot be reached\n"
            "  download it where there is a network (`skytrain models fetch` puts it into the store, `hf download` into a "
            "folder); HF_HUB_OFFLINE=1 forbids the network"
        )
    problem = str(error).strip().partition("\n")[0] or type(error).__name__
    return SkytrainError(f"{name}: the Hugging Face hub failed: {problem}\n  run it again, or give a folder")
