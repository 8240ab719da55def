"""Which weights of a model are sent to the server, with PEFT and without, and how they are packed."""

import copy
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from architectures import save_model
from hypothesis import given
from hypothesis import strategies as st
from model_families import FAMILIES, SERVED, random_model
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.training import GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync import ModelWeights, ServerModel, WeightTensor, buckets, computed, sources, unmergeable

ADAPTERS: dict[str, dict[str, Any]] = {
    "all linear layers": {"target_modules": "all-linear"},
    "scaled by rank": {"target_modules": "all-linear", "use_rslora": True, "lora_alpha": 3},
    "DoRA": {"target_modules": "all-linear", "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens"]},
    "embedding, DoRA": {"target_modules": ["embed_tokens"], "use_dora": True},
    "head": {"target_modules": ["lm_head"]},
    "a head of its own": {"target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
    "a norm of its own": {"target_modules": ["o_proj"], "modules_to_save": ["norm"]},
}
TIED_BREAKS = ("embedding", "head")
CASES = {
    f"{family}: {adapter}": (config, options)
    for family, config in {**SERVED, "qwen2 with biases": FAMILIES["qwen2"]}.items()
    for adapter, options in ADAPTERS.items()
    if not (config.tie_word_embeddings and any(word in adapter for word in TIED_BREAKS))
}


def plain(config: Any) -> Any:
    return random_model(config).eval()


def adapted(model: Any, **options: Any) -> Any:
    """Return the model with an adapter that changes its output, including its copies of whole modules."""
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("case", CASES)
def test_an_adapted_model_is_sent_merged(case: str) -> None:
    """Each weight is sent once under the plain model's name, and the adapted model stays bit-identical."""
    config, options = CASES[case]
    model = plain(config)
    names = [source.name for source in sources(model)]
    assert len(set(names)) == len(names)
    model = adapted(model, **options)
    assert unmergeable(model) is None
    merged = copy.deepcopy(model).merge_and_unload()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sent = sources(model)
    assert sorted(source.name for source in sent) == sorted(names)
    expected = merged.state_dict()
    for name, tensor in computed(sent):
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_adapters_are_merged_in_float32_and_rounded_once() -> None:
    """A server that holds float32 weights gets updates that are too small for a bfloat16 base model."""
    model = adapted(plain(SERVED["llama, untied"]).bfloat16(), target_modules=["q_proj"])
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_B["default"].weight.mul_(1e-4)
    weights = ModelWeights(model, DataParallel(Accelerator(cpu=True), GRPOConfig()))
    weights.server = ServerModel("nccl", torch.float32, None, {}, {})
    sent = dict(weights)["model.layers.0.self_attn.q_proj.weight"]
    base, delta = layer.base_layer.weight.float(), layer.get_delta_weight("default").float()
    assert 0 < delta.abs().max() < 1e-3
    assert torch.equal(sent, base + delta)
    assert not torch.equal(sent, base)
    assert (base + delta).bfloat16().float().ne(base).float().mean() < 0.1  # bfloat16 would hide most of the update


def test_a_bucket_is_complete_while_vllm_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's producer reads tensors on streams of its own, so the device is synchronized before a bucket is yielded
    and before it is freed."""
    weights = ModelWeights(plain(SERVED["llama, untied"]), DataParallel(Accelerator(cpu=True), GRPOConfig()))
    weights.bucket_bytes = 100_000
    events: list[str] = []
    monkeypatch.setattr(ModelWeights, "_synchronize", lambda self: events.append("synchronize"))
    monkeypatch.setattr(DataParallel, "whole", lambda self, tensor: events.append("compute") or tensor.data)
    for _ in weights.buckets():
        events.append("read")
    runs = [event for event, _ in itertools.groupby(events)]
    number = runs.count("read")
    assert number > 3
    assert runs == ["compute", "synchronize", "read", "synchronize"] * number


@pytest.mark.parametrize("family", SERVED)
def test_head_and_embedding_are_both_sent_even_if_tied(family: str) -> None:
    """vLLM silently keeps the old head if it receives only the embedding."""
    tensors = dict(computed(sources(plain(SERVED[family]))))
    if family == "gemma2":  # vLLM has no LM head for Gemma 2 and refuses one
        assert "lm_head.weight" not in tensors
        return
    tied = tensors["lm_head.weight"].data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()
    assert tied is bool(SERVED[family].tie_word_embeddings)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LoraConfig(target_modules=["o_proj"], lora_bias=True), "LoRA with lora_bias"),
        (LoraConfig(target_modules=["o_proj"], trainable_token_indices=[5]), "LoRA with trainable_token_indices"),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "PROMPT_TUNING adapters"),
        (PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "PREFIX_TUNING adapters"),
        (IA3Config(target_modules=["o_proj"], feedforward_modules=[]), "IA3 adapters"),
        (LoraConfig(target_modules=["embed_tokens"]), "ties the LM head and the embedding"),
        (LoraConfig(target_modules=["o_proj"], modules_to_save=["lm_head"]), "ties the LM head and the embedding"),
        (LoraConfig(target_modules=["o_proj"], modules_to_save=["embed_tokens"]), "ties the LM head and the embedding"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # PEFT warns of some of these configs
def test_models_that_cannot_be_sent_are_refused(
    config: Any, reason: str, model: Any, tokenizer: Any, make_env: Any, make_args: Any
) -> None:
    """The error is one line, raised when the trainer is created and before any request to a server."""
    from rg_env.training import GRPOTrainer

    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias = torch.nn.Parameter(torch.zeros(model.config.hidden_size))
    with pytest.raises(InputError, match=f"cannot serve the trained model: .*{reason}") as caught:
        GRPOTrainer(model, make_env(), make_args(), tokenizer, peft_config=config, engine="vllm")
    assert "\n" not in str(caught.value)


def test_quantized_weights_are_refused() -> None:
    """Quantized weights cannot be merged."""
    model = plain(SERVED["llama, untied"])
    model.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(
        torch.zeros(8, 8, dtype=torch.uint8), requires_grad=False
    )
    assert "quantized" in str(unmergeable(model))


@pytest.mark.parametrize("is_loaded", [False, True], ids=["new", "loaded"])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "phimoe", "gemma3", "gpt_neox", "hrm_text"])
def test_weights_are_sent_as_they_are_saved(kind: str, is_loaded: bool, tmp_path: Path) -> None:
    """vLLM loads the Hub's names. In memory, experts are one tensor, and some other weights have other names or are
    parts of another tensor."""
    pytest.importorskip(f"transformers.models.{kind}")
    folder = save_model(kind, tmp_path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    if not is_loaded:
        model = AutoModelForCausalLM.from_config(model.config)
        model.save_pretrained(folder)
    found = sources(model)
    sent, saved = dict(computed(found)), load_file(folder / "model.safetensors")
    tied = {name for name in sent.keys() - saved.keys() if name.endswith("lm_head.weight")}
    assert sent.keys() == saved.keys() | tied
    assert all(torch.equal(sent[name], tensor) for name, tensor in saved.items())
    assert {source.name: source.shape for source in found} == {name: each.shape for name, each in sent.items()}
    if kind in ("mixtral", "qwen3_moe"):
        assert sum(".experts." in name for name in sent) == 2 * 4 * 3  # layers, experts, projections


@given(sizes=st.lists(st.integers(0, 100), max_size=30), limit=st.integers(1, 120))
def test_buckets_lose_nothing_and_keep_their_size(sizes: list[int], limit: int) -> None:
    """Sources keep their order, and a bucket exceeds the limit only if it contains a single larger source."""
    unpacked = [WeightTensor(str(number), (size,), torch.uint8, (), partial(dict)) for number, size in enumerate(sizes)]
    made = list(buckets(unpacked, limit))
    assert [source for bucket in made for source in bucket] == unpacked
    for bucket in made:
        assert bucket
        assert len(bucket) == 1 or sum(source.num_bytes for source in bucket) <= limit
