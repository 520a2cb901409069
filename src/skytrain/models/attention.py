"""Causal attention: grouped queries or latent, windows, soft-capping and sinks, and the cache of keys and values
for generation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig, LatentConfig
from .documents import Documents
from .norm import make_norm
from .parametrization import multipliers
from .rope import Rotation, halves_of_pairs, rotate

LATENT_EPS = 1e-6  # of the norms of compressed queries and keys: DeepSeek's code has it, whatever model.norm_eps is


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
            batch, groups, _, _ = k_bgtq.shape
            self._keys[layer] = k_bgtq.new_empty(batch, groups, self.max_length, k_bgtq.size(-1))
            self._values[layer] = v_bgtq.new_empty(batch, groups, self.max_length, v_bgtq.size(-1))
        end = self.length + k_bgtq.size(2)
        assert end <= self.max_length, "the cache is full"
        self._keys[layer][:, :, self.length : end] = k_bgtq
        self._values[layer][:, :, self.length : end] = v_bgtq
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]


class Sinks(nn.Module):
    """A score of each head that takes part in the softmax and has no value: what goes to it goes nowhere."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(heads))

    def forward(self) -> Tensor:
        return self.bias


class Attention(nn.Module):
    """What grouped and latent attention share: how queries attend to keys and values, by head."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_size = config.head_width
        self.queries_per_group = config.heads // config.groups
        self.scale = multipliers(config).attention_scale
        self.window = config.window_of(layer)
        self.softcap = config.attention_softcap
        self.dropout = config.dropout
        self.sinks = Sinks(config.heads) if config.sinks else None

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
            if self.sinks is None and not dropout and self.window in documents.blocks:
                from .flex import attend_within

                blocks = documents.blocks[self.window]
                grouped = self.queries_per_group > 1
                return attend_within(q_bhtq, k_bgsq, v_bgsq, blocks, self.scale, grouped, self.softcap)
            mask = documents.visible(self.window)
        if self.softcap is None and self.sinks is None:
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
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = scores.float().masked_fill(~mask, float("-inf"))
        if self.sinks is not None:
            sink_bht1 = self.sinks().float()[None, :, None, None].expand(*scores.shape[:-1], 1)
            weights = torch.cat((scores, sink_bht1), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return F.dropout(weights.type_as(v_bhsq), dropout) @ v_bhsq


class GroupedAttention(Attention):
    """Multi-head attention whose queries, keys and values come from one product.

    Rows of `qkv` are ordered by key-value group: the group's query heads, its key, its value. A split of the rows among
    devices then gives each of them whole groups, and nothing here counts heads but by what it was given.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
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


class LatentAttention(Attention):
    """Multi-head latent attention (DeepSeek-V2): a token's keys and values are made of one short vector, its latent.

    Each head has a plain part, and a rotary part whose key all heads share. The cache keeps the latent and that key.
    What is computed before `q_up` and `kv_up` does not depend on heads, so that a split of their rows divides heads.
    """

    def __init__(self, config: DecoderConfig, settings: LatentConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.settings = settings
        heads, query = config.heads, settings.query_rank
        self.q_down = None if query is None else nn.Linear(config.width, query, bias=False)
        self.q_norm = None if query is None else make_norm(config, query, eps=LATENT_EPS)
        self.q_up = nn.Linear(query or config.width, heads * self.head_size, bias=False)
        self.kv_down = nn.Linear(config.width, settings.rank + settings.rope_size, bias=False)
        self.kv_norm = make_norm(config, settings.rank, eps=LATENT_EPS)
        self.shared_key = nn.Identity()  # a name for the key that all heads share, for tensor parallelism
        self.kv_up = nn.Linear(settings.rank, heads * (settings.plain_size + settings.value_size), bias=False)
        self.out = nn.Linear(heads * settings.value_size, config.width, bias=False)

    def forward(
        self, x_btd: Tensor, rotation: Rotation | None, cache: KVCache | None, documents: Documents | None = None
    ) -> Tensor:
        settings = self.settings
        narrow = x_btd if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x_btd))
        q_bhtq = self.q_up(narrow).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        latent_btr, key_btp = self.kv_down(x_btd).split((settings.rank, settings.rope_size), dim=-1)
        latent_btr, key_b1tp = self.kv_norm(latent_btr), self.shared_key(key_btp).unsqueeze(1)
        plain_bhtn, turning_bhtp = q_bhtq.split((settings.plain_size, settings.rope_size), dim=-1)
        if settings.interleaved:
            turning_bhtp, key_b1tp = halves_of_pairs(turning_bhtp), halves_of_pairs(key_b1tp)
        if rotation is not None:
            turning_bhtp, key_b1tp = rotate(turning_bhtp, rotation), rotate(key_b1tp, rotation)
        if cache is not None:
            latent_b1tr, key_b1tp = cache.extend(self.layer, latent_btr.unsqueeze(1), key_b1tp)
            latent_btr = latent_b1tr.squeeze(1)
        kv_bhsq = self.kv_up(latent_btr).unflatten(-1, (-1, settings.plain_size + settings.value_size)).transpose(1, 2)
        k_bhsn, v_bhsv = kv_bhsq.split((settings.plain_size, settings.value_size), dim=-1)
        q = torch.cat((plain_bhtn, turning_bhtp), dim=-1)
        k = torch.cat((k_bhsn, key_b1tp.expand(-1, k_bhsn.size(1), -1, -1)), dim=-1)
        # Flash kernels and rings take values of the keys' size.
        v = F.pad(v_bhsv, (0, self.head_size - settings.value_size))
        y_bhtv = self.attend(q, k, v, documents)[..., : settings.value_size]
        return self.out(y_bhtv.transpose(1, 2).flatten(2))


def make_attention(config: DecoderConfig, layer: int) -> Attention:
    if config.latent is not None:
        return LatentAttention(config, config.latent, layer)
    return GroupedAttention(config, layer)


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return a mask that is True where a query may see a key; the last query stands at the last key."""
    at_q = torch.arange(keys - queries, keys, device=device)[:, None]
    at_k = torch.arange(keys, device=device)[None, :]
    seen = at_k <= at_q
    return seen if window is None else seen & (at_q - at_k < window)
