"""Pushes an exported folder to the Hugging Face hub: one commit, after every file has arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import MissingExtra, SkytrainError
from ..storage import Patience, Retry, hub_http_error
from .sums import files_of

RETRY = Retry(seconds=300.0, first_wait_seconds=1.0)
TRY_AGAIN = (408, 429)  # client errors that may pass: timeout, too many requests
LOGIN = "run `hf auth login`, or set HF_TOKEN to a token that may write"
Progress = Callable[[float, float], None]  # bytes done, and in total


def check_hub_name(name: str) -> None:
    """Raise SkytrainError if the hub would refuse the name of a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise SkytrainError(
            f"{name!r} cannot be a repository's name\n  give OWNER/NAME, such as my-team/my-model"
        ) from None


def push_folder(folder: Path, name: str, *, private: bool, progress: Progress = lambda done, total: None) -> str:
    """Create the repository if needed, upload the folder's files one by one, and commit them together.

    Pushing again after an interruption sends only files that the hub does not have. Returns the URL of the commit.
    """
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise MissingExtra("huggingface_hub", "data") from None
    api: Any = HfApi(library_name="skytrain")
    files = sorted(files_of(folder), key=lambda path: path.stat().st_size)
    total = sum(path.stat().st_size for path in files)
    disable_progress_bars()  # `progress` reports instead
    _patiently(name, lambda: api.create_repo(name, private=private, exist_ok=True))
    additions = []
    done = 0
    for path in files:
        addition = CommitOperationAdd(path.relative_to(folder).as_posix(), path)
        # This uploads only large files, and none that the hub already has, by its hash.
        _patiently(name, lambda addition=addition: api.preupload_lfs_files(name, [addition]))  # type: ignore[misc]
        additions.append(addition)
        done += path.stat().st_size
        progress(done, total)
    commit = _patiently(name, lambda: api.create_commit(name, additions, commit_message="Upload model by Skytrain"))
    return str(commit.commit_url)


def _patiently(name: str, request: Callable[[], Any]) -> Any:
    """Repeat a request while the hub does not respond, or responds that it is unable to for now."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    http_error = hub_http_error()
    patience = Patience(RETRY)
    while True:
        try:
            return request()
        except (http_error, OSError, RuntimeError) as raised:
            # A failed upload is a RuntimeError, whose cause says why.
            error = raised.__cause__ if isinstance(raised, RuntimeError) else raised
            if not isinstance(error, http_error | OSError):
                raise
            status = getattr(getattr(error, "response", None), "status_code", None)
            refused = isinstance(error, OfflineModeIsEnabled) or (status is not None and status in range(400, 500))
            wait = None if refused and status not in TRY_AGAIN else patience.failed()
            if wait is None:
                raise _explained(name, error, status) from None
            time.sleep(wait)


def _explained(name: str, error: Exception, status: int | None) -> SkytrainError:
    if status == 401:
        return SkytrainError(f"{name}: the Hugging Face hub asks for a token\n  {LOGIN}")
    if status == 403:
        return SkytrainError(f"{name}: this token may not write to that repository on the Hugging Face hub\n  {LOGIN}")
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return SkytrainError(
        f"{name}: the upload to the Hugging Face hub failed: {first}\n"
        "  push the folder again: only files that the hub does not have are sent"
    )
