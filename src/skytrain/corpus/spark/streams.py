"""Groups of equal keys, buckets and stars in a stream of sorted batches, in memory that does not grow with a group.

Each object keeps what the next batch needs to know about earlier ones. Results depend only on the records and their
order, so a task that runs again gives the same result.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..minhash import mix
from ..near import ALL_PAIRS, NEIGHBOURS


class EqualKeys:
    """Groups of records with the same key."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._first = -1

    def twins(self, first: np.ndarray, second: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return for each record the first document with its key, -1 for that document itself.

        The key is (`first`, `second`); records are sorted by key and document.
        """
        if not len(documents):
            return np.empty(0, np.int64)
        begins = np.ones(len(documents), np.bool_)
        begins[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        begins[0] = self._key != (int(first[0]), int(second[0]))
        firsts = np.concatenate([[self._first], documents[begins]])
        of_group = firsts[np.cumsum(begins)]
        self._key = (int(first[-1]), int(second[-1]))
        self._first = int(firsts[-1])
        return np.where(begins, -1, of_group)


class BucketPairs:
    """Pairs of documents in the same bucket, chosen by rank as in the local engine."""

    def __init__(self) -> None:
        self._key = np.zeros(3, np.int64)  # hash and band of the current bucket, and its documents so far
        self._first = np.zeros(ALL_PAIRS, np.int64)
        self._last = np.zeros(NEIGHBOURS, np.int64)

    def pairs(self, hashes: np.ndarray, bands: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return the pairs of the next records, which are sorted by hash, band and document."""
        pairs = np.empty((len(documents) * (ALL_PAIRS - 1), 2), np.int64)
        count = _bucket_pairs(hashes, bands, documents, self._key, self._first, self._last, pairs)
        return pairs[:count]


class LargeStars:
    """Links from each node's larger neighbours to the smallest of its neighbours and itself."""

    def __init__(self) -> None:
        self._groups = EqualKeys()

    def links(self, nodes: np.ndarray, neighbours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the links of the next records, which are sorted by node and neighbour."""
        least = np.minimum(_least(self._groups, nodes, neighbours), nodes)
        larger = neighbours > nodes
        return neighbours[larger], least[larger]


class SmallStars:
    """Links from each node and its neighbours, which are all smaller, to the smallest of them."""

    def __init__(self) -> None:
        self._groups = EqualKeys()
        self._last = (-1, -1)

    def links(self, nodes: np.ndarray, neighbours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the links of the next records, which are sorted by node and neighbour."""
        if not len(nodes):
            return nodes, neighbours
        least = _least(self._groups, nodes, neighbours)
        again = np.zeros(len(nodes), np.bool_)
        again[1:] = (nodes[1:] == nodes[:-1]) & (neighbours[1:] == neighbours[:-1])
        again[0] = self._last == (int(nodes[0]), int(neighbours[0]))
        self._last = int(nodes[-1]), int(neighbours[-1])
        first = ~again & (neighbours == least)
        others = ~again & (neighbours != least)
        return np.concatenate([nodes[first], neighbours[others]]), np.concatenate([least[first], least[others]])


def _least(groups: EqualKeys, nodes: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    first = groups.twins(nodes, nodes, neighbours)
    return np.where(first < 0, neighbours, first)


def contract(edges: np.ndarray) -> np.ndarray:
    """Return (node, smallest node of its component) for every node of the edges that is not itself the smallest."""
    nodes, places = np.unique(edges, return_inverse=True)
    roots = _components(len(nodes), places.reshape(-1, 2))
    others = np.flatnonzero(roots != np.arange(len(nodes)))
    return np.stack([nodes[others], nodes[roots[others]]], axis=1)


def checksum(nodes: np.ndarray, roots: np.ndarray) -> int:
    """Return a sum over all links that does not depend on their order."""
    return int(_checksum(nodes.view(np.uint64), roots.view(np.uint64)))


@njit(cache=True, nogil=True)
def _bucket_pairs(hashes, bands, documents, key, first, last, pairs):  # type: ignore[no-untyped-def]
    count = 0
    for k in range(len(documents)):
        if hashes[k] != key[0] or bands[k] != key[1]:
            key[0], key[1], key[2] = hashes[k], bands[k], 0
        rank, document = key[2], documents[k]
        for i in range(rank if rank < ALL_PAIRS else NEIGHBOURS):
            pairs[count, 0], pairs[count, 1] = first[i], document
            count += 1
        if rank >= ALL_PAIRS:
            for i in range(NEIGHBOURS):
                pairs[count, 0], pairs[count, 1] = last[i], document
                count += 1
        else:
            first[rank] = document
        last[rank % NEIGHBOURS] = document
        key[2] = rank + 1
    return count


@njit(cache=True, nogil=True)
def _components(count, edges):  # type: ignore[no-untyped-def]
    parent = np.arange(count)
    for e in range(len(edges)):
        a, b = edges[e, 0], edges[e, 1]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        parent[max(a, b)] = min(a, b)
    for i in range(count):
        parent[i] = parent[parent[i]]
    return parent


@njit(cache=True, nogil=True)
def _checksum(nodes, roots):  # type: ignore[no-untyped-def]
    total = np.uint64(0)
    for i in range(len(nodes)):
        total += mix(mix(nodes[i]) + roots[i])
    return total
