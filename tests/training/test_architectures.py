"""Tiny random models of real classes are loaded, sampled from, trained, saved, resumed and merged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, UNSUPPORTED, save_model
from peft import LoraConfig

from rg_env.core.environment import Environment
from rg_env.errors import InputError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import Policy, load_policy, with_adapters
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.training import GRPOConfig, GRPOTrainer
from rg_env.training.checkpointing.checkpoints import check_fit
from rg_env.training.checkpointing.files import read_shapes, stored_parameters

ROWS = [{"question": "How many legs" + " and cats" * (i % 3) + f" {i} ?", "answer": str(i)} for i in range(4)]
QUICK = ("mixtral",)
IN_CI = (
    "llama", "gemma3", "phi3", "cohere2", "granite", "gpt2", "qwen3_moe", "deepseek_v3", "granitemoe", "gpt_oss",
    "qwen3_next", "lfm2", "falcon_h1",
)  # fmt: skip
"""Each kind of attention, cache, dropout, experts and tokenizer. The weekly tests cover all architectures."""
WITHOUT_ALL_LINEAR = ("phimoe", "falcon_h1", "granitemoehybrid", "bamba", "jamba")
"""Models in which PEFT cannot wrap all linear layers."""


def reward(rollout: Any) -> float:
    """Reward that differs between completions."""
    return float(sum(rollout.token_ids) % 7)


def trainer_of(policy: Policy, output: Path, **given: Any) -> GRPOTrainer:
    args = GRPOConfig(
        output_dir=str(output),
        max_steps=2,
        learning_rate=1e-2,
        warmup_steps=0,
        rollouts_per_step=8,
        per_device_train_batch_size=4,
        num_generations=4,
        max_prompt_length=300,
        max_tokens=10,
        use_cpu=True,
        bf16=False,
    )
    env = Environment(train_rows=ROWS, rewards=[reward], system_prompt=None)
    return GRPOTrainer(policy.model, env, args, policy.tokenizer, **given)


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(8, 20)[None]).logits
    return found


def check_greedy(policy: Policy) -> None:
    """Compare the engine's completions of prompts with different lengths, in one batch, with `generate`, one by one."""
    encoder = PromptEncoder(policy.tokenizer)
    prompts = [encoder([{"role": "user", "content": row["question"]}]) for row in ROWS]
    engine = EmbeddedEngine(policy.model, policy.tokenizer)
    for prompt, got in zip(prompts, engine.generate(prompts, Sampling(0.0, max_tokens=16)), strict=True):
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "eos_token_id": sorted(engine.end_ids) or None, "pad_token_id": 0}
        expected = policy.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, **options)
        assert got.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # PEFT's, for experts
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # PEFT's, for GPT-2, whose setting it corrects
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=[pytest.mark.slow] * (kind not in QUICK) + [pytest.mark.full_matrix] * (kind not in QUICK + IN_CI),
        )
        for kind in ARCHITECTURES
    ],
)
def test_a_model_is_trained_saved_and_resumed(kind: str, tmp_path: Path) -> None:
    """The embedded engine equals `generate`, sampling and training agree on log-probabilities, and a checkpoint has the
    Hub's names, can be loaded and resumed from, and equals the trained model. Adapters can be loaded and merged."""
    source = save_model(kind, tmp_path / "model")
    policy = load_policy(str(source))
    check_greedy(policy)
    before = logits(policy.model)
    trainer = trainer_of(policy, tmp_path / "run")
    trainer.train()
    assert [log["sampling/logp_difference"] < 1e-5 for log in trainer.state.log_history] == [True, True]
    trained = logits(policy.model)
    assert not torch.allclose(trained, before, atol=1e-3)

    checkpoint = trainer.save_checkpoint()
    assert read_shapes(checkpoint, "model.safetensors") == read_shapes(source, "model.safetensors")
    torch.testing.assert_close(logits(load_policy(str(checkpoint)).model), trained, rtol=0, atol=0)
    resumed = trainer_of(load_policy(str(source)), tmp_path / "resumed")
    check_fit(resumed, checkpoint)
    resumed.checkpoints.load(checkpoint)
    assert torch.equal(logits(resumed.model), trained)
    del trainer, resumed

    policy = load_policy(str(source))
    targets = ["q_proj", "v_proj"] if kind in WITHOUT_ALL_LINEAR else "all-linear"
    lora = LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
    trainer = trainer_of(policy, tmp_path / "lora", peft_config=lora)
    trainer.train()
    assert [log["sampling/logp_difference"] < 1e-5 for log in trainer.state.log_history] == [True, True]
    trained = logits(trainer.model)
    assert not torch.allclose(trained, before, atol=1e-3)
    loaded: Any = with_adapters(load_policy(str(source)), str(trainer.save_checkpoint())).model
    torch.testing.assert_close(logits(loaded), trained, rtol=0, atol=0)
    torch.testing.assert_close(logits(loaded.merge_and_unload()), trained, rtol=1e-3, atol=1e-3)


def test_adapters_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    """PEFT refuses adapters on the output projection of Mamba layers."""
    policy = load_policy(str(save_model("falcon_h1", tmp_path / "model")))
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with pytest.raises(InputError, match=r"cannot add LoRA adapters to FalconH1ForCausalLM: .*out_proj") as error:
        trainer_of(policy, tmp_path / "run", peft_config=lora)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_a_model_that_the_engine_does_not_support_is_refused(kind: str, tmp_path: Path) -> None:
    """The error is one line that names the model's class and recommends vLLM."""
    policy = load_policy(str(save_model(kind, tmp_path)))
    with pytest.raises(
        InputError, match=r"embedded engine cannot generate with \w+: .*; use vLLM \(engine.kind"
    ) as error:
        EmbeddedEngine(policy.model, policy.tokenizer)
    assert type(policy.model).__name__ in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_any_generation_settings_can_be_saved(file: str, tmp_path: Path) -> None:
    """`save_pretrained` refuses a temperature without sampling, which published models have. Checkpoints keep it."""
    source = save_model("qwen2", tmp_path / "model")
    settings = {"temperature": 0.6, "top_p": 0.9, "do_sample": False}
    kept = json.loads((source / file).read_text())
    (source / file).write_text(json.dumps({**kept, **settings}))
    if file == "config.json":
        (source / "generation_config.json").unlink()
    checkpoint = trainer_of(load_policy(str(source)), tmp_path / "run").save_checkpoint()
    assert json.loads((checkpoint / "generation_config.json").read_text()).items() >= settings.items()
    load_policy(str(checkpoint))


def test_a_model_that_could_not_be_saved_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised when the trainer is created: a checkpoint would lack weights, or transformers fails."""
    policy = load_policy(str(save_model("qwen2", tmp_path / "model")))
    saved = {name: each for name, each in stored_parameters(policy.model).items() if name != "model.norm.weight"}
    monkeypatch.setattr("rg_env.training.checkpointing.checkpoints.stored_parameters", lambda model: saved)
    with pytest.raises(InputError, match=r"Qwen2ForCausalLM\) could not be loaded again: .* without model.norm.weight"):
        trainer_of(policy, tmp_path / "run")
    monkeypatch.undo()

    def fail(*args: Any, **options: Any) -> None:
        raise ValueError("no\nconfig")

    monkeypatch.setattr(policy.model.config, "save_pretrained", fail)
    with pytest.raises(InputError, match=r"checkpoints of this model \(Qwen2ForCausalLM\) cannot be saved: no"):
        trainer_of(policy, tmp_path / "run")
