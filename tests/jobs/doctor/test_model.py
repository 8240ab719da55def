"""The model, its memory, batches and prompts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import is_like, probe

from rg_env.errors import InputError
from rg_env.inference.models import DEFAULT_GPU_MODEL
from rg_env.jobs.doctor import AskedRun, Check, diagnose, gpus
from rg_env.jobs.doctor.batches import check_batch, judge_prompts, resolved
from rg_env.jobs.doctor.model import Model, check_memory, check_model, chosen_name, stored_weights
from rg_env.jobs.doctor.tokens import PromptLengths, cached_tokens, sequence_tokens
from rg_env.tiny import POLICY_DIR
from rg_env.training.reporting.memory import ModelShape


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny policy, to be damaged."""
    return shutil.copytree(POLICY_DIR, tmp_path / "model")


def test_models_that_cannot_be_trained(folder: Path) -> None:
    """What is wrong with a folder is told without loading it."""
    good, model = check_model(str(folder))
    is_like(good, "ok", "0.89 M parameters")
    assert model
    assert model.shape.layers == 4
    assert model.shape.parameters == 885_888  # tied ones once
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    is_like(check_model(str(folder))[0], "failed", "1.67 M parameters by its config.json, and its files hold 0.89 M")
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    is_like(check_model(str(folder))[0], "failed", "cannot be read", "copy or download")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    is_like(check_model(str(folder))[0], "failed", "Git LFS pointer", "copy or download")
    weights.unlink()
    is_like(check_model(str(folder))[0], "failed", "has no weights", "copy or download")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    with pytest.raises(InputError, match=r"lacks part-1\.safetensors"):
        stored_weights(str(folder))
    (folder / "chat_template.jinja").unlink()
    is_like(check_model(str(folder))[0], "failed", "no chat template", "instruction-tuned")
    is_like(check_model(str(folder.parent))[0], "failed", "holds no model", "check --model")


def test_weights_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are found; a download that was broken off counts as none."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert stored_weights("someone/model") == []
    snapshot = tmp_path / "models--someone--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (refs := tmp_path / "models--someone--model" / "refs").mkdir()
    (refs / "main").write_text("abc")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (snapshot / "1.safetensors").touch()
    assert stored_weights("someone/model") == []
    (snapshot / "2.safetensors").touch()
    assert stored_weights("someone/model") == [snapshot / "1.safetensors", snapshot / "2.safetensors"]


def test_which_model() -> None:
    """The machine's default only where none was named."""
    assert [chosen_name(AskedRun(), cuda=cuda) for cuda in (False, True)] == ["tiny", DEFAULT_GPU_MODEL]
    assert chosen_name(AskedRun(model=""), cuda=True) == ""


def test_the_machines_default_model_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run takes the tiny policy then; one that was asked for has to be there."""
    monkeypatch.setattr("rg_env.jobs.doctor.model.DEFAULT_GPU_MODEL", str(tmp_path / "nowhere"))
    monkeypatch.setattr("rg_env.inference.models._hub_answers", lambda: False)
    monkeypatch.setattr(gpus, "ask_torch", lambda: (probe({}), ""))
    models = [
        check
        for check in diagnose(AskedRun(environment={"num_train_examples": 8, "num_eval_examples": 2}))
        if check.name == "model"
    ]
    is_like(models[0], "warning", "the tiny policy takes its place", "check --model")
    is_like(models[1], "ok", "tiny")


def test_memory_that_does_not_suffice() -> None:
    """The fix keeps the rollouts a step where a smaller micro-batch would do."""
    seven = Model("7B", False, None, ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 32_768)
    settings = resolved(AskedRun(), is_tiny=False) | {"bf16": True, "gradient_checkpointing": False}

    def look(run: AskedRun, room: int | None) -> Check:
        return check_memory(run, settings, seven, PromptLengths([100, 1024]), room, "on GPU 0")

    three = AskedRun(engine="vllm", processes=3)
    is_like(look(three, 130 * 10**9), "ok", "on GPU 0 (state 42 GB")
    fix = "--per-device-batch-size 4 (a step stays the same)"
    is_like(look(three, 100 * 10**9), "failed", "about 104 GB", fix)
    is_like(look(three, 112 * 10**9), "warning", "about 104 GB", fix)
    is_like(look(three, 30 * 10**9), "failed", "about 104 GB", "more --processes")
    is_like(look(AskedRun(), 80 * 10**9), "failed", "engine's cache 30 GB", "--engine vllm")
    is_like(look(AskedRun(), None), "skipped", "not known")


def test_batches() -> None:
    """As `GRPOConfig` sees them, over all processes."""

    def look(processes: int = 1, **settings: int) -> Check:
        run = AskedRun(processes=processes, settings=settings)
        return check_batch(run, resolved(run, is_tiny=True))

    is_like(look(), "ok", "128 rollouts a step: 16 prompts x 8")
    is_like(look(processes=2), "ok", "128 rollouts a step: 16 prompts x 8, in 1 micro-batch on each of 2 processes")
    is_like(look(processes=3), "failed", "not divisible by 3 processes", "--rollouts-per-step 192")
    is_like(look(processes=4), "failed", "does not divide the 32 rollouts", "--per-device-batch-size 16 or 32")
    is_like(look(num_generations=12), "failed", "not divisible by num_generations=12", "--rollouts-per-step 192")
    is_like(look(num_generations=1), "failed", "at least 2", "groups of at least 2")


def test_prompts() -> None:
    """Against the limit, and with the completion against the model's context."""
    settings = {"max_prompt_length": 50, "max_tokens": 30}

    def look(context: int, lengths: PromptLengths, **changes: Any) -> Check:
        return judge_prompts(AskedRun(**changes), settings, context, lengths)

    is_like(look(128, PromptLengths([20], [50])), "ok", "all 2 within 50 tokens, the longest has 50")
    is_like(look(128, PromptLengths([20, 51])), "failed", "1 of 2 are longer", "--max-prompt-length 51")
    is_like(look(128, PromptLengths([20], [51])), "failed", "1 of 2 are longer", "--max-prompt-length 51")
    is_like(look(70, PromptLengths([20, 50])), "failed", "more than the 70", "--max-tokens 20")
    more = PromptLengths([20], [50], [10, 98])
    is_like(
        look(128, more), "ok", "all 2 within 50 tokens, the longest has 50; 2 more in evaluations, the longest has 98"
    )
    is_like(look(127, more), "failed", "98 tokens, with 30 new ones more than the 127", "evaluation.max_tokens=29,")
    is_like(look(128, more, evaluated_tokens=31), "failed", "with 31 new ones", "evaluation.max_tokens=30,")
    is_like(look(128, PromptLengths([20], [50]), evaluated_tokens=79), "failed", "50 tokens, with 79 new", "=78,")
    is_like(look(98, more, evaluated_tokens=5), "failed", "98 tokens, with 5 new ones", "other evaluation.tasks, or")
    launched = look(128, more, engine="vllm")
    is_like(
        launched, "warning", "more than the 80 that `rg-env launch`", "--max-model-len 128, or --max-prompt-length 98"
    )
    assert "training.max_prompt_length=98" in AskedRun(from_config=True).worded(launched.fix)


def test_evaluations_count_for_memory_and_context() -> None:
    """The embedded engine holds as many of their answers as of rollouts; a server must take the longest of them."""
    settings = {"max_prompt_length": 50, "max_tokens": 30, "per_device_train_batch_size": 8}
    settings["rollouts_per_step"] = 16
    lengths = PromptLengths([20], [50], [90] * 9)

    def cached(**changes: Any) -> tuple[int, int]:
        return cached_tokens(AskedRun(**changes), settings, lengths)

    assert cached() == (16 * 80, 2 * 10 * 120)
    assert cached(evaluated_answers=5, evaluated_tokens=60) == (16 * 80, 5 * 10 * 150)
    assert cached(evaluated_answers=100) == (16 * 80, 512 * 120)
    assert cached(evaluated_answers=0) == (16 * 80, 0)
    assert cached(engine="vllm") == (0, 0)
    assert sequence_tokens(AskedRun(), settings) == 80
    assert sequence_tokens(AskedRun(evaluated_tokens=60), settings) == 110
    assert sequence_tokens(AskedRun(evaluated_tokens=60), settings, lengths) == 150
    seven = Model("7B", False, None, ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 32_768)
    settings = resolved(AskedRun(), is_tiny=False) | {"bf16": True}

    def look(besides: int, **changes: Any) -> Check:
        run = AskedRun(from_config=True, **changes)
        found = PromptLengths([100, 1024], [], [1024] * besides)
        return check_memory(run, settings, seven, found, 140 * 10**9, "here")

    is_like(look(0), "warning", "engine's cache 30 GB)")
    is_like(look(64), "warning", "engine's cache 30 GB)")
    is_like(look(256), "failed", "engine's cache in evaluations 120 GB)", "shorter evaluation.max_tokens, a smaller")
    is_like(look(1000), "failed", "engine's cache in evaluations 120 GB)", "shorter evaluation.max_tokens, a smaller")


def test_the_context_follows_the_lengths_that_are_given() -> None:
    """A run whose prompts may be longer needs room for them."""
    run = AskedRun(settings={"max_prompt_length": 300, "learning_rate": None})
    assert sequence_tokens(run, resolved(run, is_tiny=True)) == 390
    assert resolved(run, is_tiny=True)["learning_rate"] == 1e-4
