"""A key-value cache that grows in place, and decoding attention that does not copy shared key-value heads.

transformers' `DynamicCache` copies the whole cache for every token, and SDPA attention in transformers copies keys and
values again, once per query head (`repeat_kv`). For small models on a CPU, these copies dominate the cost of a decode
step. Only layers that store keys and values are replaced. Layers with other states, such as those of linear attention,
convolutions and Mamba, remain transformers' own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

_GROUPED = "rg_env_grouped_sdpa"


class GrowingLayer(DynamicLayer):
    """One layer's keys and values, `(B, kv_heads, capacity, head_dim)`. Only the first `length` positions are in
    use."""

    def __init__(self, capacity: int):
        super().__init__()
        self.is_initialized: bool = False
        self.capacity, self.length = capacity, 0
        self.stores: list[torch.Tensor] = []
        """Memory for keys and values, including unused positions."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `(B, kv_heads, new, head_dim)` states, and return all states so far, as views. Other arguments, which
        differ between transformers releases, are ignored."""
        start, self.length = self.length, self.length + key_states.shape[-2]
        # Under autocast, rotary embeddings return float32 keys, which attention would cast again for each token.
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.capacity = max(self.capacity, self.length)
            self.stores = [self._copied(states, 0) for states in (key_states, value_states)]
        elif self.length > self.capacity:
            # The cache grows by half each time, so the amortized cost per token is constant.
            self.capacity = max(self.length, self.capacity * 3 // 2)
            self.stores = [self._copied(store, start) for store in self.stores]
        for store, states in zip(self.stores, (key_states, value_states), strict=True):
            store[:, :, start : self.length] = states
        self.keys, self.values = (store[:, :, : self.length] for store in self.stores)
        return self.keys, self.values

    def _copied(self, states: torch.Tensor, used: int, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the first `used` positions of these rows (default: all) to new memory with room for `capacity`
        positions."""
        count = len(states if rows is None else rows)
        new = states.new_empty(count, states.shape[1], self.capacity, states.shape[3])
        if rows is None:
            new[:, :, :used] = states[:, :, :used]
        else:  # without a second copy
            torch.index_select(states[:, :, :used], 0, rows, out=new[:, :, :used])
        return new

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep only these rows of the batch. A row may be repeated."""
        self.stores = [self._copied(store, self.length, beam_idx) for store in self.stores]
        self.keys, self.values = (store[:, :, : self.length] for store in self.stores)

    def get_seq_length(self) -> int:
        return self.length


class GrowingCache(Cache):
    """transformers' cache for the model, with a `GrowingLayer` for each layer of keys and values. It keeps all
    positions: sliding windows, if any, are left to the attention mask."""

    def __init__(self, config: PretrainedConfig, capacity: int):
        layers = DynamicCache(config=config).layers
        plain = (DynamicLayer, DynamicSlidingWindowLayer)  # classes derived from these store other states as well
        super().__init__(layers=[GrowingLayer(capacity) if type(layer) in plain else layer for layer in layers])


def _grouped_sdpa(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, None]:
    """Run SDPA. While decoding, treat the query heads that share a key-value head as several queries to that head."""
    batch, heads, length, dim = query.shape
    kv_heads = key.shape[1]
    if length != 1 or heads == kv_heads:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    grouped = query.view(batch, kv_heads, heads // kv_heads, dim)
    scale = options.get("scaling")
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return out.reshape(batch, 1, heads, dim), None


AttentionInterface.register(_GROUPED, _grouped_sdpa)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


def attends_everything(model: Any) -> bool:
    """Whether every layer of `model`, which may be wrapped by PEFT, uses full causal attention through transformers'
    attention interface. All layers of such a model can share one 4-D mask."""
    layers = DynamicCache(config=model.config).layers
    # Some old models (Falcon) have attention of their own, which misreads the name and the mask of another attention.
    return bool(model._supports_attention_backend) and all(type(layer) is DynamicLayer for layer in layers)


@contextmanager
def decoding_attention(model: Any) -> Iterator[bool]:
    """Within this context, decode with grouped attention if the result is exact for the model. Yield whether grouped
    attention is used, in which case the model also accepts 4-D masks."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    fast = before == "sdpa" and attends_everything(model)
    try:
        if fast:
            config._attn_implementation = _GROUPED
        yield fast
    finally:
        config._attn_implementation = before
