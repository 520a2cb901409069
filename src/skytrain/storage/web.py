"""Read-only access to files on a web server, with the same range requests, retries and etag checks as a bucket."""

from __future__ import annotations

from typing import Any

from .bucket import BucketStore
from .retry import Retry, ServerHistory


class WebFiles(BucketStore):
    """A read-only store at `https://server`; keys are URL paths. Listing and writing are not supported."""

    def __init__(self, root: str, retry: Retry | None = None) -> None:
        from obstore.store import HTTPStore

        self._retry = retry or Retry()
        self._history = ServerHistory()
        self._made_from = (root, self._retry)  # type: ignore[assignment]
        self.root = root.rstrip("/")
        plain: Any = {"allow_http": True} if root.startswith("http://") else {}
        client: Any = HTTPStore.from_url(root, client_options=plain, retry_config=self._retry.for_requests())
        self._client = client
