"""Converts nested training state to JSON plus named tensors, and back. Unlike a pickle, reading it executes no code."""

from __future__ import annotations

from typing import Any

import torch

TENSOR = "$tensor"
SAME = "$same"
ITEMS = "$items"
TUPLE = "$tuple"


def split_tensors(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the tree with tensors replaced by names, and the tensors by name. Shared storage is kept once."""
    tensors: dict[str, torch.Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def visit(node: Any, name: str) -> Any:
        if isinstance(node, torch.Tensor):
            identity = (node.data_ptr(), node.dtype, tuple(node.shape), node.stride()) if node.numel() else (name,)
            if identity in seen:
                return {SAME: seen[identity]}
            seen[identity] = name
            tensors[name] = node.detach().contiguous()
            return {TENSOR: name}
        if isinstance(node, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: visit(value, f"{name}/{key}") for key, value in node.items()}
            return {ITEMS: [[key, visit(value, f"{name}/{key}")] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {TUPLE: [visit(value, f"{name}/{i}") for i, value in enumerate(node)]}
        if isinstance(node, list):
            return [visit(value, f"{name}/{i}") for i, value in enumerate(node)]
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        raise TypeError(f"{name}: {type(node).__name__} cannot be saved in a checkpoint")

    return visit(tree, ""), tensors


def join_tensors(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Put the tensors back into a tree: the inverse of `split_tensors`."""
    if isinstance(plain, list):
        return [join_tensors(value, tensors) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        (key, value), *_ = plain.items()
        if key in (TENSOR, SAME):
            return tensors[value]
        if key == ITEMS:
            return {tuple(k) if isinstance(k, list) else k: join_tensors(v, tensors) for k, v in value}
        if key == TUPLE:
            return tuple(join_tensors(item, tensors) for item in value)
    return {key: join_tensors(value, tensors) for key, value in plain.items()}
