"""Small configurations of the model families that rg_env is tested with, for models with random weights."""

import copy
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SMALL: dict[str, Any] = {
    "vocab_size": 784,
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


def random_model(config: Any, seed: int = 0, **options: Any) -> Any:
    """Return a model with random weights. The model gets a copy of `config`, because transformers writes a model's
    attention implementation and data type into its configuration, which would affect later tests."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), **options)


def supports_sdpa(config: Any) -> bool:
    """Whether the model can use PyTorch's SDPA. transformers 5.20 and later refuse it for Gemma 2's soft caps."""
    return bool(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa)


FAMILIES = {
    "qwen2": Qwen2Config(**SMALL),
    "qwen2 with a sliding window": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "llama": LlamaConfig(**SMALL),
    "mistral with a sliding window": MistralConfig(**SMALL, sliding_window=8),
    "gemma2 with soft caps": Gemma2Config(**SMALL, head_dim=16, sliding_window=8),
    "phi3 with fused projections": Phi3Config(**SMALL),
}

_SERVED: dict[str, Any] = {**SMALL, "num_hidden_layers": 2, "hidden_size": 128, "head_dim": 32}
_GEMMA: dict[str, Any] = {**_SERVED, "layer_types": ["full_attention"] * 2, "query_pre_attn_scalar": 32}
SERVED = {
    "qwen2, tied": Qwen2Config(**_SERVED, tie_word_embeddings=True),
    "qwen2, untied": Qwen2Config(**_SERVED, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**_SERVED, tie_word_embeddings=True),
    "llama, untied": LlamaConfig(**_SERVED, tie_word_embeddings=False),
    "mistral": MistralConfig(**_SERVED, sliding_window=None),
    "gemma": GemmaConfig(**_SERVED),
    "gemma2": Gemma2Config(**_GEMMA, hidden_act="gelu_pytorch_tanh", attn_logit_softcapping=None),
    "gemma3": Gemma3TextConfig(**_GEMMA),
    "phi3, fused": Phi3Config(**_SERVED, sliding_window=None),
}
"""Models that vLLM can serve on CPUs: with heads of size 32, and no sliding windows or soft caps in attention."""
_EXPERTS: dict[str, Any] = {**_SERVED, "num_experts_per_tok": 2, "tie_word_embeddings": False}
EXPERTS = {
    "mixtral": MixtralConfig(**_EXPERTS, num_local_experts=4, sliding_window=None),
    "qwen3_moe": Qwen3MoeConfig(**_EXPERTS, num_experts=4, moe_intermediate_size=64),
}
"""Models whose experts are one tensor in memory. vLLM can serve them on CPUs."""
