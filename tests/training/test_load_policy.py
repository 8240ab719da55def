"""Model folders that cannot be loaded, and the default policy."""

import contextlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_model
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from rg_env.errors import InputError
from rg_env.inference.chat_templates import require_chat_template
from rg_env.inference.models import Policy, describe_model, flash_attention_problem
from rg_env.tiny import POLICY_DIR
from rg_env.training import load_policy
from rg_env.training.weight_sync import server_name


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the tiny policy's folder."""
    for source in POLICY_DIR.iterdir():
        if source.is_file():
            (tmp_path / source.name).write_bytes(source.read_bytes())
    return tmp_path


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_model_files_are_one_line(copied: Path, file: str) -> None:
    """The error is one line, whatever the parser raises."""
    (copied / file).write_bytes(b"\x00garbage")
    part = {"model.safetensors": "weights", "tokenizer.json": "tokenizer files"}.get(file, file)
    with pytest.raises(InputError, match=f"cannot load the model '{copied}': {part}: .") as caught:
        load_policy(str(copied))
    assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_named(copied: Path) -> None:
    """Missing weights are an error, because they would be initialized randomly."""
    tensors = load_file(copied / "model.safetensors")
    name = next(key for key in tensors if key.endswith("q_proj.weight"))
    save_file({key: t for key, t in tensors.items() if key != name}, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"its weights lack {name}"):
        load_policy(str(copied))


@pytest.mark.parametrize("folder", [False, True])
def test_a_gguf_file_needs_its_package(tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a GGUF file is a model, too. `tests/matrix/test_real_model.py` loads one."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    model = str(tmp_path if folder else file)
    monkeypatch.setattr("rg_env.inference.models.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=f"^{file} needs the package gguf, which is not installed: run `pip install gguf`"
    ):
        load_policy(model)
    monkeypatch.undo()
    if find_spec("gguf") is None:
        monkeypatch.setattr("rg_env.inference.models.find_spec", lambda name: object())
    with pytest.raises(InputError, match=f"^cannot load the model '{model}': m.gguf: "):
        load_policy(model)
    (tmp_path / "other.gguf").touch()
    if folder:  # it is not clear which one
        with pytest.raises(InputError, match="is not a model folder"):
            load_policy(model)


def test_a_chat_template_next_to_a_gguf_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base models have none, and the error tells users to add it. Here, what transformers reads from the GGUF file is
    the tiny policy's configuration and tokenizer, without a template."""
    file, tiny = tmp_path / "m.gguf", describe_model("tiny")
    file.touch()
    tiny.tokenizer.chat_template = None
    monkeypatch.setattr("rg_env.inference.models.find_spec", lambda name: object())
    for name, value in (("AutoConfig", tiny.config), ("AutoTokenizer", tiny.tokenizer)):
        monkeypatch.setattr(f"rg_env.inference.models.{name}.from_pretrained", lambda *_, value=value, **__: value)
    with pytest.raises(InputError, match=r"no chat template: use an .* or add a chat_template.jinja to its folder"):
        require_chat_template(describe_model(str(file)).tokenizer)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}é")
    for model in (file, tmp_path):
        tokenizer = describe_model(str(model)).tokenizer
        require_chat_template(tokenizer)
        assert tokenizer.chat_template.endswith("é")
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match=f"cannot load the model '{file}': chat_template.jinja: .*utf-8"):
        describe_model(str(file))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_may_be_missing(copied: Path, tied: bool) -> None:
    """The LM head may be missing only if the config ties it to the embedding."""
    tensors = {key: t for key, t in load_file(copied / "model.safetensors").items() if key != "lm_head.weight"}
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    with contextlib.nullcontext() if tied else pytest.raises(InputError, match="lack lm_head"):
        load_policy(str(copied))


def test_weights_of_another_shape_are_refused(copied: Path) -> None:
    """The error is one line that names the folder."""
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    with pytest.raises(
        InputError,
        match=f"cannot load the model '{copied}': its weights disagree with its config.json",
    ) as caught:
        load_policy(str(copied))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_weights_of_further_layers_are_refused(kind: str, tmp_path: Path) -> None:
    """A config.json with fewer layers than the weights would load only a part of the model."""
    config = json.loads((save_model(kind, tmp_path) / "config.json").read_text())
    assert load_policy(str(tmp_path)).model.config.num_hidden_layers == 2
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(InputError, match=r"num_hidden_layers=1, but its weights have more layers \(model.layers.1.inp"):
        load_policy(str(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]},
    ],
)
def test_models_that_do_not_predict_the_next_token_are_refused(
    config: dict[str, Any], copied: Path, error_of: Any
) -> None:
    """Otherwise, BERT would be trained although it sees the tokens that it predicts."""
    (copied / "config.json").write_text(json.dumps(config))
    words = f"{config['architectures'][0]} is not a causal language model, which predicts the next token: use one, such"
    with pytest.raises(InputError, match=f"^cannot load the model '{copied}': {words}"):
        load_policy(str(copied))
    (copied / "run.yaml").write_text(f"{{model: {copied}, tasks: chain_sum}}")
    train = ("train", str(copied / "run.yaml"))
    others = [
        (command, option, str(copied), "--tasks", "chain_sum")
        for command, option in (("eval", "--models"), ("probe", "--model"))
    ]
    for command in (train, (*train, "--dry-run"), *others):
        assert words in error_of(*command)


def test_a_dry_run_refuses_a_model_that_cannot_be_used(copied: Path, rg_env: Any) -> None:
    (copied / "chat_template.jinja").unlink()
    (copied / "run.yaml").write_text(f"{{model: {copied}, tasks: chain_sum}}")
    code, _, error = rg_env("train", copied / "run.yaml", "--dry-run")
    assert (code, error.count("\n")) == (2, 1)
    assert f"the model {copied} has no chat template: use an instruction-tuned model" in error


def test_unused_weights_are_reported(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that the model's class does not have, apart from further layers, are named in one line."""
    tensors = load_file(copied / "model.safetensors")
    save_file({**tensors, "value_head.weight": torch.ones(2)}, copied / "model.safetensors", {"format": "pt"})
    load_policy(str(copied))
    assert f"{copied}: LlamaForCausalLM does not use the weights value_head.weight\n" in capsys.readouterr().out


@pytest.mark.parametrize("eos", ["abc", [[1]]])
def test_damaged_generation_settings_are_one_line(copied: Path, eos: Any) -> None:
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(InputError, match=f"cannot load the model '{copied}': generation_config.json has eos_token_id="):
        load_policy(str(copied))


@pytest.mark.parametrize("flash", [False, True])
def test_auto_attention_is_one_that_the_model_supports(
    flash: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bloom has only eager attention, also where flash-attn works."""
    if flash:
        monkeypatch.setattr("rg_env.inference.models.flash_attention_problem", lambda dtype: None)
    policy = load_policy(str(save_model("bloom", tmp_path)))
    assert policy.model.config._attn_implementation == "eager"
    with pytest.raises(InputError, match="scaled_dot_product_attention"):
        load_policy(str(tmp_path), attention="sdpa")


def test_the_default_without_a_gpu_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message reports that the tiny policy is used, also if the Hub cannot be reached."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_policy().is_tiny
    assert capsys.readouterr().out == "No GPU found: using the tiny policy included in rg_env.\n"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rg_env.inference.models.hub_answers", lambda: False)
    policy = load_policy()
    assert isinstance(policy, Policy)
    assert policy.is_tiny
    assert "the Hub cannot be reached" in capsys.readouterr().out


def test_flash_attention_is_used_where_it_works() -> None:
    """The requested attention is used. flash-attn is the default, but needs half precision, a supported GPU generation,
    and the package."""
    assert "the weights are float32" in str(flash_attention_problem(torch.float32))
    assert load_policy("tiny").model.config._attn_implementation == "sdpa"
    assert load_policy("tiny", attention="eager").model.config._attn_implementation == "eager"
    problem = flash_attention_problem(torch.bfloat16)
    if not torch.cuda.is_available():
        assert problem == "this machine has no CUDA GPU"
    used = load_policy("tiny", dtype="bfloat16").model.config._attn_implementation
    assert used == ("sdpa" if problem else "flash_attention_2")
    if problem:
        with pytest.raises(InputError, match=f"cannot be used here: {re.escape(problem)}; use 'auto' or 'sdpa'"):
            load_policy("tiny", dtype="bfloat16", attention="flash_attention_2")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention": "flash_attention_2"}, "half precision, but the weights are float32; use 'auto' or 'sdpa'"),
        ({"attention": "flash"}, "attention='flash' is invalid: use one of auto, flash_attention_2, sdpa, eager"),
        ({"dtype": "float16"}, "dtype='float16' is invalid: use one of auto, float32, bfloat16"),
    ],
)
def test_invalid_loading_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_policy("tiny", **options)


def test_frozen_weights_in_bfloat16_have_adapters_in_float32(make_trainer: Any) -> None:
    """A training step changes the adapters, but not the frozen weights."""
    model = load_policy("tiny", dtype="bfloat16").model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(model=model, peft_config=config, max_steps=1, learning_rate=1e-3, temperature=1.3)
    trained = {name: value.dtype for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert set(trained.values()) == {torch.float32}
    trainer.train()
    frozen = {server_name(n): p for n, p in trainer.model.named_parameters() if not p.requires_grad}
    assert len(frozen) > 20
    assert all(value.dtype == torch.bfloat16 and torch.equal(value, before[name]) for name, value in frozen.items())
    assert any(bool(p.any()) for n, p in trainer.model.named_parameters() if "lora_B" in n)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is installed on Linux only")
def test_the_first_import_of_deepspeed_is_quiet() -> None:
    """DeepSpeed warns of a missing GPU, which would be the first line that a user of `rg_env.training` sees."""
    code = "import rg_env.training, deepspeed.accelerator as found; found.get_accelerator()"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("kind", ["pickle", "config", "tokenizer"])
def test_a_folder_with_code_is_refused_without_advice_to_run_it(copied: Path, kind: str) -> None:
    """transformers and torch recommend options that run the code, which rg_env does not have."""
    if kind == "pickle":
        (copied / "model.safetensors").unlink()
        torch.save({"weight": subprocess.Popen}, copied / "pytorch_model.bin")
    else:
        file = copied / ("config.json" if kind == "config" else "tokenizer_config.json")
        name = "AutoConfig" if kind == "config" else "AutoTokenizer"
        values = {**json.loads(file.read_text()), "model_type": "own", "tokenizer_class": "Own"}
        file.write_text(
            json.dumps({**values, "auto_map": {name: "own.Own" if kind == "config" else ["own.Own", None]}})
        )
        (copied / "own.py").write_text("raise SystemExit('run')")
        if kind == "tokenizer":
            (copied / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="cannot load the model") as caught:
        load_policy(str(copied))
    assert not re.search("weights_only|trust_remote_code|safe_globals|trust", str(caught.value)), caught.value
    assert len(str(caught.value)) > len(f"cannot load the model '{copied}': ") + 30
