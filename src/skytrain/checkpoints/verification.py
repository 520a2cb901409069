"""Verification: reads every byte of a checkpoint and compares every hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..storage import Store
from .commits import Commit, read_manifest
from .errors import CheckpointError, DamagedCheckpoint
from .manifest import HashedRange
from .ranges import read_exactly, spans

READ_BYTES = 16 << 20
THREADS = 4


def verify(store: Store, commit: Commit, progress: Callable[[float], None] | None = None) -> list[str]:
    """Return the problems of a checkpoint, one line each; empty if every byte is as it was committed.

    `progress` is called with the number of bytes checked since the last call.
    """
    if problems := check_sizes(store, commit):
        return problems
    folder, manifest = read_manifest(store, commit)

    def check(span: Sequence[HashedRange]) -> list[str]:
        wrong = _check(store, folder, span)
        if progress is not None:
            progress(span[-1].end - span[0].start)
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        return [line for wrong in pool.map(check, spans(manifest.ranges())) for line in wrong]


def check_sizes(store: Store, commit: Commit) -> list[str]:
    """Return the problems of a checkpoint that need no reading of its tensors: a file that is missing or cut off."""
    try:
        folder, manifest = read_manifest(store, commit)
    except CheckpointError as error:
        return [str(error).splitlines()[0]]
    there = {stat.key: stat.size for stat in store.list(folder)}
    problems = []
    for name, file in manifest.files.items():
        size = there.get(f"{folder}/{name}")
        if size != file.bytes:
            problem = "is missing" if size is None else f"has {size} bytes"
            problems.append(f"{store.url(f'{folder}/{name}')} {problem}; {file.bytes} were committed")
    return problems


def newest_intact(store: Store, commits: Sequence[Commit], known: Commit | None = None) -> tuple[Commit, list[str]]:
    """Return the newest intact checkpoint, and the problems of each newer one, one line each.

    `commits` are those of a run, in order of step. `known` was just verified, and is not read again.
    """
    damaged: list[str] = []
    for commit in reversed(commits):
        problems = [] if commit == known else verify(store, commit)
        if not problems:
            return commit, damaged
        damaged.append(f"step {commit.step} is damaged: {problems[0]}")
    lines = "".join(f"\n  {line}" for line in damaged)
    raise DamagedCheckpoint(
        f"no checkpoint of the run is intact:{lines}\n  restore one from a backup, or start again under another name: run=NAME"
    )


def _check(store: Store, folder: str, span: Sequence[HashedRange]) -> list[str]:
    """Return the problems in one group of ranges. A large range, such as a file of DeepSpeed's, is read in blocks."""
    key = f"{folder}/{span[0].file}"
    wrong = []
    try:
        if len(span) == 1:
            digest = hashlib.sha256()
            for start in range(span[0].start, span[0].end, READ_BYTES):
                digest.update(read_exactly(store, key, start, min(READ_BYTES, span[0].end - start)))
            digests = [digest.hexdigest()]
        else:
            first = span[0].start
            data = memoryview(read_exactly(store, key, first, span[-1].end - first))
            digests = [hashlib.sha256(data[each.start - first : each.end - first]).hexdigest() for each in span]
    except DamagedCheckpoint as error:
        return [str(error).splitlines()[0]]
    for each, digest_found in zip(span, digests, strict=True):
        if digest_found != each.sha256:
            wrong.append(f"{store.url(key)} was altered: the bytes of {each.name} are not those committed")
    return wrong
