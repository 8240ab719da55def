"""Tests of `rg-env export`: every export can be loaded and equals the trained model; a failed one leaves no files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_model
from checkpoint_files import TOKENIZER, save_whole, tied, weights, with_config, write_zero
from huggingface_hub import save_torch_state_dict
from model_families import FAMILIES, SERVED
from result_files import run_evaluation
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.errors import ExportError, InputError
from rg_env.evaluation.config import run_of
from rg_env.publish import export as export_module
from rg_env.tiny import POLICY_DIR

Export = Callable[..., tuple[Path, list[str]]]
Make = Callable[..., Any]
Patch = pytest.MonkeyPatch
IDS = torch.arange(3, 40).view(1, -1)


def same_model(folder: Path, model: Any, dtype: torch.dtype = torch.float32) -> None:
    """Check that `from_pretrained` loads a model that computes the same as `model` with weights rounded to `dtype`."""
    # Gemma 2's soft caps are not in all attention implementations, so both models use the same one.
    attention = model.config._attn_implementation
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation=attention)
    assert loaded.dtype == dtype
    for name, parameter in model.named_parameters(remove_duplicate=False):
        assert torch.equal(loaded.get_parameter(name), parameter.to(dtype)), name
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=IDS).logits, rounded(model, dtype)(input_ids=IDS).logits)


def rounded(model: Any, dtype: torch.dtype) -> Any:
    """Round only the parameters of `model`; `model.to` would also round the rotary frequencies."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def test_an_export_keeps_what_an_evaluation_takes_from_the_run(saved: Path, exported: Export, tmp_path: Path) -> None:
    """The files are found even if the export is outside the run."""
    for file in ("config.yaml", "manifest.json", "metrics.jsonl"):
        (saved.parent / file).write_text("{}")
    out, _ = exported(saved, out=tmp_path / "elsewhere" / "model", verify=False)
    assert sorted(file.name for file in (out / "run").iterdir()) == ["config.yaml", "manifest.json"]
    run = run_of(str(out))
    assert run
    assert run.path == out / "run"


@pytest.mark.parametrize("family", [*SERVED, "gemma2 with soft caps"])
def test_model_families_are_exported_unchanged(family: str, make_model: Make, exported: Export, tmp_path: Path) -> None:
    """The weights, some of them tied or fused, are assembled from shards of three processes."""
    model = make_model({**SERVED, **FAMILIES}[family])
    folder = with_config(tmp_path / "checkpoint-5", model)
    write_zero(folder, weights(model), stage=3, processes=3, shared=tied(model))
    out, lines = exported(folder)
    assert out == tmp_path / "checkpoint-5-export"
    assert lines[0] == f"exporting {folder}: ZeRO-3 shards of 3 processes, step 5"
    (verified,) = [line for line in lines if line.startswith("verified: every tensor equals the trained tensor; ")]
    assert verified.endswith("difference between the logits on fixed prompts is 0")
    with safe_open(out / "model.safetensors", "pt") as file:
        assert set(file.keys()) == {name for name, _ in model.named_parameters()}, "a tied one once"
        assert file.metadata() == {"format": "pt"}
    same_model(out, model)


@pytest.mark.parametrize("kind", ["mixtral", "gemma3"])
def test_weights_with_other_names_in_memory_are_exported(kind: str, exported: Export, tmp_path: Path) -> None:
    """Files that `save_pretrained` wrote have the Hub's names, and shards have those in memory, where transformers
    merges experts and adds prefixes. The export has the Hub's names."""
    plain = save_model(kind, tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(plain)
    folder = with_config(tmp_path / "checkpoint-5", model)
    for file in plain.glob("*tokenizer*"):
        shutil.copyfile(file, folder / file.name)
    shutil.copyfile(plain / "chat_template.jinja", folder / "chat_template.jinja")
    write_zero(folder, weights(model), stage=2, processes=2, shared=tied(model))
    names = load_file(plain / "model.safetensors").keys()
    for source in (plain, folder):
        out, _ = exported(source)
        assert load_file(out / "model.safetensors").keys() == names
        same_model(out, model)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_weights_are_rounded_once(dtype: str, make_model: Make, saved: Path, exported: Export, tmp_path: Path) -> None:
    """They are rounded to the requested dtype, which config.json records."""
    out, _ = exported(saved, dtype=dtype, out=tmp_path / "new" / "folder")
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    assert json.loads((out / "config.json").read_text())["dtype"] == str(wanted).removeprefix("torch.")
    assert {path.name for path in out.iterdir()} >= {"config.json", "model.safetensors", *TOKENIZER}
    assert AutoTokenizer.from_pretrained(out).chat_template == (POLICY_DIR / "chat_template.jinja").read_text()
    same_model(out, make_model(), wanted)


def test_the_dtype_is_that_of_the_checkpoint(make_model: Make, exported: Export, tmp_path: Path) -> None:
    """The dtype is the one that the run loaded, or else the one in config.json, or else that of the weights."""
    model = rounded(make_model(), torch.bfloat16)
    folder = with_config(tmp_path / "run" / "checkpoint-5", model)
    write_zero(folder, weights(model), stage=3, processes=2, shared=tied(model))
    same_model(exported(folder)[0], model, torch.bfloat16)
    (tmp_path / "run" / "config.yaml").write_text("model: {name: tiny, dtype: float32}")
    (tmp_path / "run" / "metrics.jsonl").touch()
    out, _ = exported(folder, out=tmp_path / "other")
    assert load_file(out / "model.safetensors")["model.norm.weight"].dtype == torch.float32

    plain = save_whole(tmp_path / "plain", model)
    values = json.loads((plain / "config.json").read_text())
    del values["dtype"]
    (plain / "config.json").write_text(json.dumps(values))
    out, _ = exported(plain)
    assert json.loads((out / "config.json").read_text()) == {**values, "torch_dtype": "bfloat16"}
    same_model(out, model, torch.bfloat16)


def test_large_models_have_several_files(saved: Path, make_model: Make, monkeypatch: Patch, exported: Export) -> None:
    """The files have an index like the one that transformers writes."""
    monkeypatch.setattr(export_module, "SHARD_SIZE", 300_000)
    model = make_model()
    out, lines = exported(saved)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert f"in {len(files)} files" in "".join(lines)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * 4 for p in model.parameters())
    assert set(index["weight_map"]) == set(weights(model))
    same_model(out, model)


def test_a_runs_last_or_best_checkpoint_is_exported(make_model: Make, exported: Export, tmp_path: Path) -> None:
    """The best checkpoint has the highest recorded accuracy of those that were saved."""
    models = {step: make_model(seed=step) for step in (2, 4, 10)}
    (tmp_path / "eval_results").mkdir()
    for step, model in models.items():
        save_whole(tmp_path / f"checkpoint-{step}", model)
    with pytest.raises(InputError, match=r"has no recorded accuracy for any of its checkpoints"):
        exported(tmp_path, best=True)
    same_model(exported(tmp_path)[0], models[10])
    for step, accuracy in ((2, 0.4), (4, 0.9), (6, 1.0), (10, 0.5)):
        known = {"part": "training", "task": "t", "truncated": False, "answer": "a", "completion": "c", "reward": 1.0}
        found = run_evaluation(step, [[{**known, "correct": n < 10 * accuracy}] for n in range(10)])
        (tmp_path / "eval_results" / f"eval_step_{step}.json").write_text(found.model_dump_json())
        if step == 10:
            out, lines = exported(tmp_path, best=True, verify=False)
            assert lines[0] == f"exporting {tmp_path}/checkpoint-4: {'pytorch_model.bin'}, step 4"
            same_model(out, models[4])
            shutil.rmtree(out)
    with pytest.raises(InputError, match="is not a run with checkpoint-N folders"):
        exported(tmp_path / "checkpoint-2", best=True)


NORM = "model.norm.weight"


def norm(model: Any, value: float) -> dict[str, torch.Tensor]:
    changed = model.model.norm.weight.detach().clone()
    changed[3] = value
    return {NORM: changed}


@pytest.mark.parametrize(
    ("changed", "dtype", "words"),
    [
        (lambda m: norm(m, torch.nan), None, rf"{NORM} has non-finite values \(NaN or infinity\) in the checkpoint"),
        (lambda m: norm(m, -1e6), "fp16", rf"{NORM} has values that are too large for torch.float16"),
        (lambda m: norm(m, 3.4e38), "bf16", "too large for torch.bfloat16"),
        (lambda m: {NORM: None}, None, rf"{NORM} is missing from the checkpoint, which lacks 1 weight of Qwen2"),
        (lambda m: {NORM: torch.empty(0)}, None, rf"{NORM} has the shape \(0,\) .*ZeRO-3 saves empty weights"),
        (lambda m: {NORM: torch.ones(9)}, None, r"has the shape \(9,\) in the checkpoint and \(128,\) in Qwen2"),
        (lambda m: {"red\x1b[31m": torch.ones(9)}, None, r"^red \[31m is in the checkpoint but not in Qwen2"),
        (lambda m: {"lm_head.weight": torch.ones(784, 128)}, None, "ties model.embed_tokens.weight and lm_head.weight"),
        (lambda m: {NORM: torch.ones(128, dtype=torch.int8)}, None, "has dtype torch.int8, but quantized"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_rejected(
    changed: Any, dtype: Any, words: Any, make_model: Any, exported: Export, tmp_path: Path, refused: Any
) -> None:
    """Such checkpoints are rejected even without verification, and no files or parent folders are left."""
    model = make_model()
    folder = save_whole(tmp_path / "m", model, changed(model))
    with refused(words):
        exported(folder, dtype=dtype, verify=False, out=tmp_path / "new" / "out")


@pytest.mark.parametrize("stored", ["both", "head"])
def test_a_stored_tied_head_is_read_once(stored: str, make_model: Make, exported: Export, tmp_path: Path) -> None:
    """The head is dropped if it equals the embedding, and replaces an embedding that is missing."""
    model = make_model()
    head = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    folder = save_whole(tmp_path / "m", model, head | ({"model.embed_tokens.weight": None} if stored == "head" else {}))
    out, _ = exported(folder)
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    same_model(out, model)


def test_tensors_that_share_memory_are_all_written(make_model: Make, exported: Export, tmp_path: Path) -> None:
    """A torch file can store a head that shares memory with the embedding, in a model that does not tie them."""
    model = make_model(SERVED["qwen2, untied"])
    model.lm_head.weight = model.model.embed_tokens.weight
    head = {"lm_head.weight": model.lm_head.weight}
    folder = with_config(tmp_path / "m", model)
    torch.save({**dict(model.named_parameters()), **head}, folder / "pytorch_model.bin")
    out, _ = exported(folder)
    assert load_file(out / "model.safetensors").keys() == {*weights(model), *head}
    same_model(out, model)


def test_wrong_tensors_are_detected(saved: Path, exported: Export, refused: Any, monkeypatch: Patch) -> None:
    """The written file is read again, and a few wrong bytes make the export fail."""

    def and_spoil(tensors: dict[str, torch.Tensor], folder: Path, **options: Any) -> None:
        save_torch_state_dict(tensors, folder, **options)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-4] + bytes(4))

    monkeypatch.setattr(export_module, "save_torch_state_dict", and_spoil)
    with refused("the export differs from the checkpoint: model.norm.weight differs", ExportError):
        exported(saved)


def test_weights_in_the_wrong_places_are_detected(make_model: Make) -> None:
    """The tolerance on the logits allows for rounding, but not for two swapped layers of the same shape."""
    model = make_model()
    prompts = export_module.prompt_ids(AutoTokenizer.from_pretrained(POLICY_DIR), 784)
    trained = export_module.logits(model, prompts)
    assert export_module.check_logits(trained, trained + 7, 1e-6) < 1e-6
    for dtype, tolerance in export_module.LOGITS_TOLERANCE.items():
        assert 0 <= export_module.check_logits(trained, trained.to(dtype).float(), tolerance) < tolerance
    model.model.layers[0], model.model.layers[1] = model.model.layers[1], model.model.layers[0]
    swapped = export_module.logits(model, prompts)
    for wrong in (swapped, trained.roll(1, dims=0), trained * 1.2, torch.full_like(trained, torch.nan)):
        with pytest.raises(ExportError, match="on fixed prompts, the export's logits differ"):
            export_module.check_logits(trained, wrong, export_module.LOGITS_TOLERANCE[torch.bfloat16])


def test_the_base_model_provides_missing_files(saved: Path, make_model: Make, exported: Export, tmp_path: Path) -> None:
    """Without a configuration and a tokenizer, such as after `accelerate merge-weights`, they come from --base."""
    (tmp_path / "m").mkdir()
    (saved / "pytorch_model.bin").rename(tmp_path / "m" / "pytorch_model.bin")
    same_model(exported(tmp_path / "m", base=str(saved))[0], make_model())
