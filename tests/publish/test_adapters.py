"""Tests of exporting LoRA adapters: the merged model computes the same as the model with its adapters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import TOKENIZER, weights, with_config
from model_families import SERVED
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rg_env.errors import ExportError, InputError

Export = Callable[..., tuple[Path, list[str]]]
IDS = torch.arange(3, 40).view(1, -1)
ALL = {"target_modules": "all-linear"}


@pytest.fixture
def trained(make_model: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Return a function that makes a checkpoint with trained adapters, and its model. `options` go to `LoraConfig`."""

    def make(family: str = "qwen2, tied", **options: Any) -> tuple[Path, Any]:
        base = make_model(SERVED[family])
        save_file(weights(base), with_config(tmp_path / "base", base) / "model.safetensors")
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, **{**ALL, **options})).eval()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                torch.manual_seed(len(name))
                parameter.data += torch.randn_like(parameter) * 0.05
        folder = tmp_path / "run" / "checkpoint-5"
        model.save_pretrained(folder)
        for name in TOKENIZER:
            (folder / name).write_bytes((tmp_path / "base" / name).read_bytes())
        return folder, model

    return make


def computed(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2, tied", {}),
        ("llama, untied", {"use_rslora": True, "lora_alpha": 3}),
        ("phi3, fused", {"rank_pattern": {"qkv_proj": 2}, "alpha_pattern": {"o_proj": 1}}),
        ("llama, untied", {"use_dora": True}),
        ("llama, untied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
        ("llama, untied", {"target_modules": ["embed_tokens", "q_proj"]}),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")
def test_merged_adapters_compute_the_same(trained: Any, exported: Export, family: str, options: dict[str, Any]) -> None:
    """The merged model needs no PEFT, and its logits match those that PEFT computes with unmerged adapters."""
    folder, model = trained(family, **options)
    out, lines = exported(folder, dtype="fp32")
    assert lines[0] == f"exporting {folder}: LoRA adapters, merged, step 5"
    assert any(line.startswith("verified: every tensor equals the trained tensor") for line in lines)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert not (out / "adapter_config.json").exists()
    torch.testing.assert_close(computed(loaded), computed(model), rtol=1e-4, atol=1e-4)
    base = computed(AutoModelForCausalLM.from_pretrained(folder.parents[1] / "base"))
    assert not torch.allclose(computed(model), base, atol=1e-2)


def config(**changes: Any) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        state = load_file(folder / "adapter_model.safetensors")
        change(state)
        save_file(state, folder / "adapter_model.safetensors")

    return edit


def another(state: dict[str, torch.Tensor]) -> None:
    """Add a weight that belongs to another kind of adapter, which PEFT ignores."""
    name = next(name for name in state if name.endswith("q_proj.lora_A.weight"))
    state[name.replace("lora_A", "lora_C")] = torch.ones(1)


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (config(base_model_name_or_path="/nowhere"), InputError, "has no config.json: pass the base model as --base"),
        (lambda f: (f / "adapter_config.json").write_text("{"), InputError, "adapter_config.json is damaged"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), InputError, "copy adapter_model.safetensors as well"),
        (tensors(lambda state: state.pop(min(state))), ExportError, "is missing"),
        (tensors(another), ExportError, r"q_proj\.lora_C\.weight is not part of the base model"),
        (tensors(lambda state: state[min(state)].fill_(torch.nan)), ExportError, "non-finite values"),
        (tensors(lambda state: state.update({min(state): torch.empty(0)})), InputError, "cannot load the adapters in"),
        (config(r=9), InputError, "cannot load the adapters in"),
        (config(lora_bias=True), ExportError, r"lora_B\.bias is missing"),
    ],
)
def test_damaged_adapters(trained: Any, exported: Any, refused: Any, spoil: Any, kind: Any, words: str) -> None:
    folder, _ = trained()
    spoil(folder)
    with refused(words, kind):
        exported(folder)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_an_adapted_tied_head_cannot_be_merged(trained: Any, exported: Export) -> None:
    """Because the LM head and the embedding now differ, a merged model cannot represent them."""
    folder, _ = trained(target_modules=["q_proj"], modules_to_save=["lm_head"])
    with pytest.raises(InputError, match=f"cannot be merged: the model ties .*, or use {folder} with PEFT as it is"):
        exported(folder)
