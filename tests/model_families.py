"""Small configurations of the families of models that rg_env is tested with, random weights to be."""

from typing import Any

from transformers import Gemma2Config, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config

SMALL: dict[str, Any] = {
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
FAMILIES = {
    "qwen2": Qwen2Config(**SMALL),
    "qwen2 with a sliding window": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "llama": LlamaConfig(**SMALL),
    "mistral with a sliding window": MistralConfig(**SMALL, sliding_window=8),
    "gemma2 with soft caps": Gemma2Config(**SMALL, head_dim=16, sliding_window=8),
    "phi3 with fused projections": Phi3Config(**SMALL),
}
