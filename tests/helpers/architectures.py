"""Tiny random models of many transformers classes, each with a tokenizer of its family's kind."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]
_TEXT = ["How many legs do 2 cats and 3 birds have? Think step by step, then <answer>14</answer>. user model assistant"]
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TURNS = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m['role'] + '\\n' + m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PLAIN = "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"


@cache
def _tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    kinds: dict[str, tuple[Any, Any, Any, Any, str, str | None]] = {
        "byte-level BPE": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
            trainers.BpeTrainer(
                vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
            ),
            _CHATML,
            "<|im_end|>",
        ),
        "SentencePiece BPE": (
            models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
            pre_tokenizers.Metaspace(),
            decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
            trainers.BpeTrainer(vocab_size=300, special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]),
            _TURNS,
            "</s>",  # the template ends turns with another token
        ),
        "SentencePiece unigram": (
            models.Unigram(),
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
            trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>"),
            _PLAIN,
            "</s>",
        ),
        "WordPiece": (
            models.WordPiece(unk_token="<unk>"),
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
            trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL),
            _PLAIN,
            "</s>",
        ),
        "words, without ends and padding": (
            models.WordLevel(unk_token="<unk>"),
            pre_tokenizers.Whitespace(),
            decoders.WordPiece(),
            trainers.WordLevelTrainer(vocab_size=150, special_tokens=SPECIAL),
            _CHATML,
            None,
        ),
    }
    made = {}
    for kind, (model, splitter, decoder, trainer, template, eos) in kinds.items():
        inner = Tokenizer(model)
        inner.normalizer = normalizers.NFC()  # type: ignore[assignment]
        inner.pre_tokenizer, inner.decoder = splitter, decoder
        inner.train_from_iterator(_TEXT, trainer)
        special = {"bos_token": "<s>", "unk_token": "<unk>"} | ({"eos_token": eos, "pad_token": "<pad>"} if eos else {})
        made[kind] = PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, **special)
    return made


BPE, PIECES, UNIGRAM, WORDPIECE, WORDS = (
    "byte-level BPE",
    "SentencePiece BPE",
    "SentencePiece unigram",
    "WordPiece",
    "words, without ends and padding",
)
_BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
_HEADS = {**_BASE, "head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_n_groups": 1}
_WINDOW = {"sliding_window": 8}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (BPE, {**_BASE, "attention_dropout": 0.1}),
    "qwen2": (BPE, _BASE),
    "qwen3": (BPE, {**_HEADS, "tie_word_embeddings": True}),
    "mistral": (PIECES, {**_HEADS, **_WINDOW}),
    "ministral": (PIECES, {**_HEADS, **_WINDOW}),
    "gemma": (PIECES, _HEADS),
    "gemma2": (PIECES, {**_HEADS, **_MIXED, "final_logit_softcapping": 10.0}),
    "gemma3_text": (PIECES, {**_HEADS, **_MIXED}),
    "gemma3": (PIECES, {"text_config": {**_HEADS, **_MIXED}, "vision_config": _VISION, "mm_tokens_per_image": 4}),
    "phi3": (UNIGRAM, _BASE),
    "smollm3": (BPE, {**_BASE, "no_rope_layer_interval": 2}),
    "olmo2": (WORDS, _BASE),
    "olmo3": (BPE, {**_BASE, **_MIXED}),
    "cohere2": (BPE, {**_HEADS, **_MIXED, "logit_scale": 0.5}),
    "granite": (BPE, {**_BASE, "attention_dropout": 0.1, "logits_scaling": 2.0}),
    "glm4": (BPE, _HEADS),
    "exaone4": (BPE, {**_HEADS, **_MIXED}),
    "starcoder2": (BPE, {**_BASE, "residual_dropout": 0.1}),
    "gpt2": (BPE, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.2}),
    "gpt_neox": (BPE, {**_BASE, "hidden_dropout": 0.1}),
    "opt": (
        WORDPIECE,
        {
            **_BASE,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "dropout": 0.1,
            "layerdrop": 0.5,
            "init_std": 0.2,
        },
    ),
    "falcon": (BPE, {**_BASE, "attention_dropout": 0.1}),
    "bloom": (UNIGRAM, {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}),
    "qwen2_moe": (BPE, {**_BASE, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_moe": (BPE, {**_HEADS, **_EXPERTS}),
    "mixtral": (PIECES, {**_HEADS, **_LOCAL, "router_jitter_noise": 0.1}),
    "olmoe": (BPE, {**_BASE, **_EXPERTS}),
    "deepseek_v3": (
        BPE,
        {
            **_BASE,
            **_ROUTED,
            "num_key_value_heads": 4,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "glm4_moe": (BPE, {**_HEADS, **_ROUTED, "n_group": 1, "topk_group": 1}),
    "granitemoe": (BPE, {**_BASE, **_LOCAL, "attention_dropout": 0.1}),
    "phimoe": (UNIGRAM, {**_BASE, **_LOCAL, "input_jitter_noise": 0.1}),
    "gpt_oss": (BPE, {**_HEADS, **_LOCAL, **_MIXED}),
    "minimax_m2": (BPE, {**_HEADS, **_LOCAL, "rotary_dim": 8}),
    "qwen3_5_text": (BPE, {**_HEADS, **_LINEAR}),
    "qwen3_5_moe_text": (BPE, {**_HEADS, **_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_next": (BPE, {**_HEADS, **_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "lfm2": (BPE, {**_BASE, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_multiple_of": 8}),
    "lfm2_moe": (
        BPE,
        {**_BASE, **_EXPERTS, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "num_dense_layers": 1},
    ),
    "falcon_h1": (BPE, {**_BASE, **_MAMBA, "mamba_d_ssm": 32, "mamba_d_head": 8}),
    "granitemoehybrid": (
        BPE,
        {**_BASE, **_MAMBA, **_LOCAL, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    ),
    "bamba": (BPE, {**_BASE, **_MAMBA, "attn_layer_indices": [1]}),
    "jamba": (
        PIECES,
        {
            **_BASE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
}
"""Tokenizer and configuration of each model type."""

UNSUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "rwkv": (BPE, {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": 64}),
    "roberta": (BPE, {**_BASE, "is_decoder": True}),
}
"""Models that the embedded engine does not support."""

FUSED: dict[str, tuple[str, dict[str, Any]]] = {"hrm_text": (BPE, {**_HEADS, "num_layers_per_stack": 1})}
"""Models whose projections are parts of one tensor on the Hub."""


def save_model(kind: str, folder: Path, **changes: Any) -> Path:
    """Write a random model of the type `kind` and its tokenizer to `folder`, and return the folder."""
    tokenizer_kind, config = {**ARCHITECTURES, **UNSUPPORTED, **FUSED}[kind]
    tokenizer = _tokenizers()[tokenizer_kind]
    special = {"vocab_size": len(tokenizer) + 5, "bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id}
    special |= {"pad_token_id": tokenizer.pad_token_id}
    config = {**config, **changes}
    if "text_config" in config:
        config = {**config, "text_config": {**config["text_config"], **special}}
    described = AutoConfig.for_model(kind, **({**special, **config}))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(described).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
