"""Causal attention with grouped queries, windows and soft-capping, and the cache of keys and values for generation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig
from .documents import Documents
from .norm import make_norm
from .parametrization import multipliers
from .rope import Rotation, rotate


class KVCache:
    """Keys and values of the tokens seen so far, allocated once for `max_length` of them.

    The model writes at `length` and attends to everything before it; `length` moves when a whole forward pass is done.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def extend(self, layer: int, k_bgtq: Tensor, v_bgtq: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values that a layer computed and return all those that it may attend to."""
        if layer not in self._keys:  # shape and dtype are the model's, and autocast's: known only now
            batch, groups, _, size = k_bgtq.shape
            self._keys[layer] = k_bgtq.new_empty(batch, groups, self.max_length, size)
            self._values[layer] = v_bgtq.new_empty(batch, groups, self.max_length, size)
        end = self.length + k_bgtq.size(2)
        assert end <= self.max_length, "the cache is full"
        self._keys[layer][:, :, self.length : end] = k_bgtq
        self._values[layer][:, :, self.length : end] = v_bgtq
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values come from one product.

    Rows of `qkv` are ordered by key-value group: the group's query heads, its key, its value. A split of the rows among
    devices then gives each of them whole groups, and nothing here counts heads but by what it was given.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_size = config.head_width
        self.queries_per_group = config.heads // config.groups
        self.scale = multipliers(config).attention_scale
        self.window = config.window_of(layer)
        self.softcap = config.attention_softcap
        self.dropout = config.dropout
        rows = (config.heads + 2 * config.groups) * self.head_size
        self.qkv = nn.Linear(config.width, rows, bias=config.bias != "none")
        self.out = nn.Linear(config.heads * self.head_size, config.width, bias=config.bias == "all")
        self.norms_heads = config.qk_norm_scope == "head"
        q_size, k_size = (1, 1) if self.norms_heads else (config.heads, config.groups)
        self.q_norm = make_norm(config, q_size * self.head_size) if config.qk_norm else None
        self.k_norm = make_norm(config, k_size * self.head_size) if config.qk_norm else None

    def forward(
        self, x_btd: Tensor, rotation: Rotation | None, cache: KVCache | None, documents: Documents | None = None
    ) -> Tensor:
        batch, length, _ = x_btd.shape
        each = self.queries_per_group
        qkv = self.qkv(x_btd).view(batch, length, -1, each + 2, self.head_size)
        q_bthq = qkv[..., :each, :].flatten(2, 3)
        k_btgq = qkv[..., each, :]
        v_btgq = qkv[..., each + 1, :]
        if self.q_norm is not None and self.k_norm is not None:
            q_bthq, k_btgq = self._normalize(self.q_norm, q_bthq), self._normalize(self.k_norm, k_btgq)
        q, k, v = (x.transpose(1, 2) for x in (q_bthq, k_btgq, v_btgq))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)
        y_bhtq = self.attend(q, k, v, documents)
        return self.out(y_bhtq.transpose(1, 2).reshape(batch, length, -1))

    def _normalize(self, norm: nn.Module, x_bthq: Tensor) -> Tensor:
        if self.norms_heads:
            return norm(x_bthq)
        return norm(x_bthq.flatten(2)).unflatten(2, (-1, self.head_size))

    def attend(self, q_bhtq: Tensor, k_bgsq: Tensor, v_bgsq: Tensor, documents: Documents | None = None) -> Tensor:
        queries = q_bhtq.size(2)
        keys = k_bgsq.size(2)
        dropout = self.dropout if self.training else 0.0
        windowed = self.window is not None and keys > self.window
        # Without a mask tensor SDPA may choose a flash kernel. Its is_causal aligns the first query with the first key,
        # so it serves whole sequences only, not a few new queries behind a cache.
        whole = queries == keys
        mask = None if not windowed and (whole or queries == 1) else _mask(queries, keys, self.window, q_bhtq.device)
        if documents is not None:
            if self.softcap is None and not dropout and self.window in documents.blocks:
                from .flex import attend_within

                blocks = documents.blocks[self.window]
                return attend_within(q_bhtq, k_bgsq, v_bgsq, blocks, self.scale, self.queries_per_group > 1)
            mask = documents.visible(self.window)
        if self.softcap is None:
            return F.scaled_dot_product_attention(
                q_bhtq,
                k_bgsq,
                v_bgsq,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None and whole,
                scale=self.scale,
                enable_gqa=self.queries_per_group > 1,
            )
        if mask is None:
            mask = _mask(queries, keys, self.window, q_bhtq.device)
        each = q_bhtq.size(1) // k_bgsq.size(1)
        k_bhsq, v_bhsq = (x.repeat_interleave(each, dim=1) for x in (k_bgsq, v_bgsq))
        scores = q_bhtq @ k_bhsq.transpose(-1, -2) * self.scale
        scores = torch.tanh(scores / self.softcap) * self.softcap
        weights = scores.float().masked_fill(~mask, float("-inf")).softmax(dim=-1).type_as(v_bhsq)
        return F.dropout(weights, dropout) @ v_bhsq


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return a mask that is True where a query may see a key; the last query stands at the last key."""
    at_q = torch.arange(keys - queries, keys, device=device)[:, None]
    at_k = torch.arange(keys, device=device)[None, :]
    seen = at_k <= at_q
    return seen if window is None else seen & (at_q - at_k < window)
