"""A store in an S3 bucket or a prefix of one: obstore's client plus retries, integrity checks and atomic creation."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from .aws import s3_arguments
from .base import RECORD_BYTES, Progress, Stat, Store, check_key, check_prefix, is_key, refuse_root
from .errors import StoreError
from .folder import check_size, explained, source_opened
from .odd_keys import REFUSED, OddListing, can_list_odd_keys, delete_odd_keys, list_with_odd_keys
from .retry import Attempts, Retry, ServerHistory
from .s3_errors import Contended, CutShort, Damaged, Replaced, explain
from .transfer import CHUNK_BYTES, Transfer, altered, changed, file_chunks, write_whole

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Store

T = TypeVar("T")

PART_BYTES = 8 << 20
MOST_PARTS = 9_000  # S3 allows 10,000
CONCURRENT_PARTS = 8

# User metadata. An etag cannot verify content: with KMS or multipart it is not a hash, otherwise only MD5.
SHA256_NAME = "skytrain-sha256"
WRITER_NAME = "skytrain-writer"

# Operations that share a permission: if one has succeeded, the others are allowed too.
PERMISSIONS = {"create": "write", "upload": "write", "stat": "read", "download": "read"}

_runtime_pid: int | None = None


class BucketStore(Store):
    """A store whose objects are S3 objects below `s3://bucket/prefix`."""

    def __init__(self, root: str, retry: Retry, sse: str | None = None, kms_key: str | None = None) -> None:
        from obstore.store import S3Store

        self._made_from = (root, retry, sse, kms_key)
        bucket, _, prefix = root.removeprefix("s3://").rstrip("/").partition("/")
        if not bucket:
            raise StoreError("open", root, "it does not name a bucket", hint="for example s3://bucket/project")
        self.root = f"s3://{bucket}/{check_prefix(root, prefix)}".rstrip("/")
        self._retry = retry
        self._history = ServerHistory()
        self._client = S3Store(bucket, prefix=prefix or None, **s3_arguments(self.root, retry, sse, kms_key))

    def __reduce__(self) -> tuple[Any, ...]:
        # A spawned data loader worker opens its own connections but inherits the server history.
        return type(self), self._made_from, {"_retry": self._retry, "_history": self._history}

    def patient(self, seconds: float) -> BucketStore:
        other: BucketStore = object.__new__(type(self))
        retry = dataclasses.replace(self._retry, seconds=seconds)
        other.__dict__.update({**self.__dict__, "_retry": retry})  # shares the client and the history
        return other

    @property
    def patience_seconds(self) -> float:  # type: ignore[override]
        return self._retry.seconds

    @property
    def failing(self) -> bool:
        return bool(self._history.failing)

    def read(self, key: str, at_most: int | None = RECORD_BYTES) -> bytes:
        attempts = self._attempts("read", key)
        while True:
            try:
                data, sha256 = self._fetch("read", key, at_most=at_most)
            except Replaced:
                continue  # start over with the new object: pieces of two versions must not be mixed
            if sha256 is None or sha256 == hashlib.sha256(data).hexdigest():
                return data
            attempts.failed(Damaged())

    def read_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0 and length >= 0, (start, length)
        return self._fetch("read", key, start, length)[0] if length else b""

    def write(self, key: str, data: bytes) -> None:
        attributes = {SHA256_NAME: hashlib.sha256(data).hexdigest()}
        self._put("write", key, lambda: data, len(data), attributes)

    def write_parts(self, key: str, parts: Sequence[memoryview]) -> None:
        size = sum(part.nbytes for part in parts)
        self._put("write", key, (lambda: iter(parts)) if size > PART_BYTES else (lambda: b"".join(parts)), size)

    def create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        writer = secrets.token_hex(16)
        attributes: Any = {SHA256_NAME: hashlib.sha256(data).hexdigest(), WRITER_NAME: writer}

        def put(client: S3Store) -> bool:
            try:
                client.put(check_key(self.root, key), data, mode="create", attributes=attributes)
            except AlreadyExistsError:
                # It may be this writer's object: an earlier attempt stored it, but its response was lost.
                try:
                    return client.get(key).attributes.get(WRITER_NAME) == writer
                except FileNotFoundError:
                    raise Contended from None
            return True

        return self._call("create", key, put)

    def list(self, prefix: str = "") -> list[Stat]:
        return self._listing(prefix).stats

    def _listing(self, prefix: str) -> OddListing:
        prefix = check_prefix(self.root, prefix)

        def listed(client: S3Store) -> builtins.list[ObjectMeta] | OddListing:
            try:
                return list(client.list(prefix or None).collect())
            except Exception as error:
                if REFUSED in str(error) and can_list_odd_keys():
                    return list_with_odd_keys(self.root, prefix)
                raise

        objects = self._call("list", prefix, listed)
        if isinstance(objects, OddListing):
            return objects
        # S3's console creates empty objects as folder markers: `a/`, which obstore lists as `a`.
        folders = {str(folder) for meta in objects for folder in PurePosixPath(meta["path"]).parents} | {prefix}
        stats = sorted((_stat(meta) for meta in objects if meta["path"] not in folders), key=lambda stat: stat.key)
        return OddListing([stat for stat in stats if is_key(self.root, stat.key)], [])

    def folders(self, prefix: str = "") -> builtins.list[str]:
        prefix = check_prefix(self.root, prefix)

        def listed(client: S3Store) -> builtins.list[str]:
            try:
                found = client.list_with_delimiter(prefix or None)["common_prefixes"]
                return [path.rpartition("/")[2] for path in found]
            except Exception as error:
                if REFUSED not in str(error):
                    raise
            below = [stat.key.removeprefix(f"{prefix}/") for stat in self.list(prefix)]
            return list({key.partition("/")[0] for key in below if "/" in key})

        return sorted(self._call("list", prefix, listed))

    def stat(self, key: str) -> Stat | None:
        check_key(self.root, key)

        def head(client: S3Store) -> Stat | None:
            try:
                return _stat(client.head(key))
            except FileNotFoundError:
                return None

        return self._call("stat", key, head)

    def delete(self, key: str) -> None:
        check_key(self.root, key)
        self._call("delete", key, lambda client: client.delete(key))

    def delete_all(self, prefix: str) -> None:
        refuse_root(self.root, prefix)
        listing = self._listing(prefix)
        if listing.odd:
            delete_odd_keys(self.root, listing.odd)
        keys = [stat.key for stat in listing.stats]
        if keys:
            self._call("delete", prefix, lambda client: client.delete(keys))

    def upload(self, path: Path | str, key: str, progress: Progress | None = None, sha256: str | None = None) -> str:
        transfer = Transfer(key, progress)

        def chunks() -> Iterator[bytes]:
            with source_opened(path, self.url(key)) as file:
                yield from transfer.through(file_chunks(file))
            if sha256 is not None and transfer.sha256 != sha256:
                raise changed(self.url(key), path)  # before the upload is completed: nothing is stored

        with source_opened(path, self.url(key)) as file:
            size = os.fstat(file.fileno()).st_size
        attributes = None if sha256 is None else {SHA256_NAME: sha256}
        source = chunks if size > PART_BYTES else lambda: b"".join(chunks())
        etag = self._put("upload", key, source, size, attributes)
        stored = self.stat(key)
        if stored is None or (stored.etag == etag and stored.size != transfer.size):
            raise StoreError(
                "upload",
                self.url(key),
                f"{transfer.size} bytes were sent, but {stored.size if stored else 'none'} arrived",
            )
        return transfer.sha256

    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        check_key(self.root, key)
        transfer, attempts, last = Transfer(key, progress), self._attempts("download", key), ""
        meta = self._call("download", key, lambda client: client.head(key))

        expected: builtins.list[str] = [] if sha256 is None else [sha256]

        def publish(temporary: Path, target: Path) -> None:
            if expected and transfer.sha256 != expected[0]:
                raise Damaged
            temporary.replace(target)

        while True:
            try:
                with explained("download", self.url(key), target=Path(path)):
                    return write_whole(Path(path), transfer.through(self._in_order(_stat(meta), expected)), publish)
            except Damaged as error:
                if transfer.sha256 == last:  # the same wrong hash twice: the stored object is wrong, not the transfer
                    raise altered(self.url(key), expected[0], last) from error
                last = transfer.sha256
                attempts.failed(error)

    def local_path(self, key: str) -> Path | None:
        return None

    def _in_order(self, stat: Stat, expected: builtins.list[str]) -> Iterator[bytes]:
        """Yield the object's parts in order, downloading several concurrently.

        If `expected` is empty, the sha256 that is stored with the object is put there.
        """

        def part(future: Future[tuple[bytes, str | None]]) -> bytes:
            data, stored = future.result()
            if stored is not None and not expected:
                expected.append(stored)
            return data

        with ThreadPoolExecutor(CONCURRENT_PARTS) as pool:
            coming: deque[Future[tuple[bytes, str | None]]] = deque()
            for start in range(0, stat.size, PART_BYTES):
                length = min(PART_BYTES, stat.size - start)
                coming.append(pool.submit(self._fetch, "download", stat.key, start, length, stat.etag))
                if len(coming) == CONCURRENT_PARTS:
                    yield part(coming.popleft())
            while coming:
                yield part(coming.popleft())

    def _fetch(
        self,
        operation: str,
        key: str,
        start: int = 0,
        length: int | None = None,
        etag: str | None = None,
        at_most: int | None = None,
    ) -> tuple[bytes, str | None]:
        """Return bytes of one object, and its sha256 if that is stored as metadata.

        An interrupted download resumes where it broke off. Each request after the first requires the same etag, so
        S3 rejects it if the object was replaced.
        """
        check_key(self.root, key)
        chunks: builtins.list[bytes] = []
        here = start
        attempts = self._attempts(operation, key)
        while True:
            options: GetOptions = {"if_match": etag} if etag else {}
            if length is not None:
                options["range"] = (here, start + length)
            elif here:
                options["range"] = {"offset": here}
            try:
                answer = self._running_client().get(key, options=options)
                etag = answer.meta["e_tag"]
                size = answer.meta["size"]
                check_size(self.url(key), size, at_most)
                for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
                    chunks.append(chunk)
                    here += len(chunk)
                    attempts.progressed()
                if here < (size if length is None else min(size, start + length)):
                    raise CutShort
                attempts.succeeded()
                return b"".join(chunks), answer.attributes.get(SHA256_NAME)
            except StoreError:
                raise
            except Exception as error:
                if "status code: 416" in str(error) and here == start:
                    attempts.succeeded()
                    return b"", None  # the range starts past the end
                attempts.failed(error)

    def _put(
        self, operation: str, key: str, source: Callable[[], Any], size: int, attributes: Any = None
    ) -> str | None:
        """Store one object, in parts if it is large, and return its etag. S3 verifies the sha256 of each part."""
        check_key(self.root, key)
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        put = self._call(
            operation,
            key,
            lambda client: client.put(
                key, source(), attributes=attributes, chunk_size=part_bytes, max_concurrency=CONCURRENT_PARTS
            ),
        )
        return put["e_tag"]

    def _call(self, operation: str, key: str, action: Callable[[S3Store], T]) -> T:
        attempts = self._attempts(operation, key)
        while True:
            try:
                result = action(self._running_client())
                attempts.succeeded()
                return result
            except StoreError:
                raise
            except Exception as error:
                attempts.failed(error)

    def _attempts(self, operation: str, key: str) -> Attempts:
        permission = PERMISSIONS.get(operation, operation)
        return Attempts(self._retry, lambda error: explain(error, operation, self.url(key)), self._history, permission)

    def _running_client(self) -> S3Store:
        """Return the client, or raise in a process forked after S3 was used.

        The client's threads do not survive a fork, so a request in the child would hang.
        """
        global _runtime_pid
        _runtime_pid = _runtime_pid or os.getpid()
        if _runtime_pid != os.getpid():
            hint = "start the workers with 'spawn' or 'forkserver'"
            raise StoreError("use", self.root, "S3 was used before this worker process was forked", hint=hint)
        return self._client


class WebFiles(BucketStore):
    """A read-only store at `https://server`, whose keys are URL paths.

    It has the range requests, retries and etag checks of a bucket. Listing and writing are not supported.
    """

    def __init__(self, root: str, retry: Retry | None = None) -> None:
        from obstore.store import HTTPStore

        self._retry = retry or Retry()
        self._history = ServerHistory()
        self._made_from = (root, self._retry)  # type: ignore[assignment]
        self.root = root.rstrip("/")
        plain: Any = {"allow_http": True} if root.startswith("http://") else {}
        client: Any = HTTPStore.from_url(root, client_options=plain, retry_config=self._retry.for_requests())
        self._client = client


def _stat(meta: ObjectMeta) -> Stat:
    return Stat(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())
