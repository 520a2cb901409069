"""A bucket, or a folder in one, as a store: obstore's S3 client, with what it leaves open."""

from __future__ import annotations

import builtins
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .aws import explain, open_bucket
from .base import Progress, Stat, Store, check_key, check_prefix
from .errors import StoreError
from .folder import explained, hashed, write_whole, wrong_bytes
from .retry import Attempts, Retry

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

T = TypeVar("T")

PART_BYTES = 16 << 20
MOST_PARTS = 9_000  # S3 allows 10,000
CONCURRENT_PARTS = 8

# Metadata of our own: an etag is not a hash of the bytes in every case (KMS, multipart), this is.
SHA256_NAME = "skytrain-sha256"
WRITER_NAME = "skytrain-writer"

_runtime_pid: int | None = None


class BucketStore(Store):
    """Objects are S3 objects below `s3://bucket/prefix`."""

    def __init__(self, root: str, retry: Retry, sse: str | None = None, kms_key: str | None = None) -> None:
        self._made_from = (root, retry, sse, kms_key)
        bucket, _, prefix = root.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise StoreError("open", root, "it names no bucket", hint="s3://bucket/project")
        self.root = f"s3://{bucket}/{check_prefix(root, prefix)}".rstrip("/")
        self.retry = retry
        self._objects: S3Store = open_bucket(bucket, prefix, retry, sse, kms_key)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_from  # a data loader's spawned workers open their own connections

    def read(self, key: str) -> bytes:
        attempts = self._attempts("read", key)
        while True:
            data, sha256 = self._fetch("read", key, 0, None)
            if sha256 is None or sha256 == hashlib.sha256(data).hexdigest():
                return data
            attempts.failed(DamagedBytes())

    def read_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0 and length >= 0, (start, length)
        return self._fetch("read", key, start, length)[0] if length else b""

    def write(self, key: str, data: bytes) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        self._put("write", key, lambda: data, len(data), attributes={SHA256_NAME: sha256})

    def create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        writer = secrets.token_hex(16)
        attributes = {SHA256_NAME: hashlib.sha256(data).hexdigest(), WRITER_NAME: writer}
        try:
            self._call(
                "create", key, lambda: self._objects.put(self._key(key), data, mode="create", attributes=attributes)
            )
        except AlreadyExistsError:
            # Perhaps it is ours: stored, the answer lost, and the retry met our own object.
            found = self._call("create", key, lambda: self._objects.get(self._key(key)))
            return found.attributes.get(WRITER_NAME) == writer
        return True

    def list(self, prefix: str = "") -> list[Stat]:
        prefix = check_prefix(self.root, prefix)
        found = self._call("list", prefix, lambda: self._objects.list(prefix or None).collect())
        # A console makes empty objects that stand for folders; obstore lists the one of the prefix itself.
        return sorted((_stat(meta) for meta in found if meta["path"] != prefix), key=lambda stat: stat.key)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        prefix = check_prefix(self.root, prefix)
        found = self._call("list", prefix, lambda: self._objects.list_with_delimiter(prefix or None))
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    def stat(self, key: str) -> Stat | None:
        def head() -> Stat | None:
            try:
                return _stat(self._objects.head(self._key(key)))
            except FileNotFoundError:
                return None

        return self._call("stat", key, head)

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._objects.delete(self._key(key)))

    def delete_all(self, prefix: str) -> None:
        if not check_prefix(self.root, prefix):
            raise StoreError("delete", self.root, "this would delete the whole store", hint="name a folder below it")
        keys = [stat.key for stat in self.list(prefix)]
        if keys:
            self._call("delete", prefix, lambda: self._objects.delete(keys))

    def upload(self, path: Path | str, key: str, progress: Progress | None = None) -> str:
        path, digest = Path(path), hashlib.sha256()
        with explained("upload", self.url(key), source=path):
            size = path.stat().st_size
        sent = 0

        def report(key: str, amount: float) -> None:
            nonlocal sent
            sent += int(amount)
            if progress:
                progress(key, amount)

        def chunks() -> Iterator[bytes]:
            nonlocal digest
            if sent and progress:
                report(key, -sent)
            digest = hashlib.sha256()
            with path.open("rb") as file:
                yield from hashed(iter(lambda: file.read(1 << 20), b""), digest, key, report)

        self._put("upload", key, chunks, size)
        stored = self.stat(key)
        if stored is None or stored.size != sent:
            raise StoreError(
                "upload", self.url(key), f"{sent} bytes were sent, {stored.size if stored else 0} are stored"
            )
        return digest.hexdigest()

    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        stat = self.stat(key)
        if stat is None:
            self._fetch("download", key, 0, 1)
            raise AssertionError("an object appeared between two requests")
        digest = hashlib.sha256()

        def publish(temporary: Path, target: Path) -> None:
            if sha256 is not None and digest.hexdigest() != sha256:
                raise wrong_bytes(self.url(key), sha256, digest.hexdigest())
            temporary.replace(target)

        with explained("download", self.url(key)):
            write_whole(Path(path), hashed(self._ranges(stat), digest, key, progress), publish=publish)

    def local_path(self, key: str) -> Path | None:
        return None

    def _ranges(self, stat: Stat) -> Iterator[bytes]:
        """The object in order, several ranges on their way at once."""
        starts = range(0, stat.size, PART_BYTES)
        with ThreadPoolExecutor(CONCURRENT_PARTS) as pool:
            waiting: deque[Future[tuple[bytes, str | None]]] = deque()
            for start in starts:
                length = min(PART_BYTES, stat.size - start)
                waiting.append(pool.submit(self._fetch, "download", stat.key, start, length, stat.etag))
                if len(waiting) == CONCURRENT_PARTS:
                    yield waiting.popleft().result()[0]
            while waiting:
                yield waiting.popleft().result()[0]

    def _fetch(
        self, operation: str, key: str, start: int, length: int | None, etag: str | None = None
    ) -> tuple[bytes, str | None]:
        """Bytes of one object, and its sha256 where we stored one; a cut body continues where it was cut.

        The etag keeps the pieces together: an object replaced meanwhile is an error, never a mixture.
        """
        attempts = self._attempts(operation, key)
        data = bytearray()
        while True:
            options: GetOptions = {"if_match": etag} if etag else {}
            if start + len(data) or length is not None:
                first = start + len(data)
                options["range"] = {"offset": first} if length is None else (first, start + length)
            try:
                found = self._runtime().get(self._key(key), options=options)
                etag = etag or found.meta["e_tag"]
                end = found.meta["size"] if length is None else min(start + length, found.meta["size"])
                for chunk in found.stream(min_chunk_size=1 << 20):
                    data += chunk
                    attempts.progressed()
                if start + len(data) == end:
                    return bytes(data), found.attributes.get(SHA256_NAME)
                raise CutShort
            except StoreError:
                raise
            except Exception as error:
                if "status code: 416" in str(error) and length is not None:
                    return bytes(data), None
                attempts.failed(error)

    def _put(self, operation: str, key: str, source: Callable[[], Any], size: int, attributes: Any = None) -> None:
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        self._call(
            operation,
            key,
            lambda: self._objects.put(
                self._key(key), source(), attributes=attributes, chunk_size=part_bytes, max_concurrency=CONCURRENT_PARTS
            ),
        )

    def _call(self, operation: str, key: str, action: Callable[[], T]) -> T:
        from obstore.exceptions import AlreadyExistsError

        attempts = self._attempts(operation, key)
        while True:
            try:
                self._runtime()
                return action()
            except (AlreadyExistsError, StoreError):
                raise
            except Exception as error:
                attempts.failed(error)

    def _attempts(self, operation: str, key: str) -> Attempts:
        return Attempts(self.retry, lambda error: explain(error, operation, self.url(key)))

    def _key(self, key: str) -> str:
        return check_key(self.root, key)

    def _runtime(self) -> S3Store:
        """The client, unless this process was forked from one that used it: its threads are gone, and it would hang."""
        global _runtime_pid
        if _runtime_pid is None:
            _runtime_pid = os.getpid()
        if _runtime_pid != os.getpid():
            raise StoreError(
                "use",
                self.root,
                "this process was forked after its parent used S3",
                hint="start data loader workers with 'spawn' or 'forkserver'",
            )
        return self._objects


class CutShort(Exception):
    def __str__(self) -> str:
        return "the connection was cut before the last byte"


class DamagedBytes(Exception):
    def __str__(self) -> str:
        return "the bytes were damaged on their way: their sha256 is not the one that was stored with them"


def _stat(meta: Any) -> Stat:
    return Stat(meta["path"], meta["size"], meta["e_tag"])
