"""The files of a web server, to be read: ranges, retries and pieces held together by their etag, as for a bucket."""

from __future__ import annotations

from typing import Any

from .bucket import BucketStore
from .retry import Retry, ServerHistory


class WebFiles(BucketStore):
    """`https://server`; keys are paths on it. Nothing can be listed or written."""

    def __init__(self, root: str, retry: Retry | None = None) -> None:
        from obstore.store import HTTPStore

        self._retry, self._history = retry or Retry(), ServerHistory()
        self._made_from = (root, self._retry)  # type: ignore[assignment]
        self.root = root.rstrip("/")
        plain: Any = {"allow_http": True} if root.startswith("http://") else {}
        client: Any = HTTPStore.from_url(root, client_options=plain, retry_config=self._retry.for_requests())
        self._client = client
