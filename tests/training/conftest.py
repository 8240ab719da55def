"""A small environment and trainers on the tiny policy, small enough for a laptop and real all the way through."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.tiny import POLICY_DIR, TASKS


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POLICY_DIR)


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="session")
def gym() -> list[dict[str, Any]]:
    return [{"name": "leg_counting", "config": TASKS["leg_counting"]}]


@pytest.fixture
def make_env(gym: list[dict[str, Any]]) -> Callable[..., Any]:
    """An environment of 32 training and 8 evaluation rows; keywords as for `load_environment`."""
    from rg_env import load_environment

    def make(**changes: Any) -> Any:
        return load_environment(**{"gym": gym, "num_train_examples": 32, "num_eval_examples": 8, **changes})

    return make


@pytest.fixture
def make_args(tmp_path: Path) -> Callable[..., Any]:
    """Training arguments for 4 prompts x 4 rollouts a step; keywords are fields of `GRPOConfig`."""
    from rg_env.training import GRPOConfig

    def make(**changes: Any) -> Any:
        fields: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 2,
            "learning_rate": 1e-4,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "num_generations": 4,
            "num_batches_ahead": 0,
            "max_prompt_length": 160,
            "max_seq_len": 256,
            "max_tokens": 24,
            "beta": 0.0,
            "loss_type": "bnpo",
            "scale_rewards": "group",
            "sync_ref_model": False,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "dataloader_pin_memory": False,
            "disable_tqdm": True,
        }
        return GRPOConfig(**{**fields, **changes})

    return make


@pytest.fixture
def make_trainer(model: Any, tokenizer: Any, make_env: Any, make_args: Any) -> Callable[..., Any]:
    """An embedded-engine trainer: `env`, `model`, `callbacks`, `curriculum`, and fields of `GRPOConfig`, by keyword."""
    from rg_env.training import GRPOTrainer

    def make(
        *,
        env: Any = None,
        model: Any = model,
        callbacks: Any = None,
        peft_config: Any = None,
        curriculum: Any = None,
        **fields: Any,
    ) -> Any:
        return GRPOTrainer(
            model=model,
            env=env or make_env(),
            args=make_args(**fields),
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=peft_config,
            engine="embedded",
            curriculum=curriculum,
        )

    return make


@pytest.fixture
def make_batch(tokenizer: Any) -> Callable[[list[str], list[str]], dict[str, torch.Tensor]]:
    """Right-padded ids `(B, L)` of questions and completions, and verifiers' loss mask, 1 on completion tokens."""

    def make(questions: list[str], completions: list[str]) -> dict[str, torch.Tensor]:
        prompts = [tokenizer(question)["input_ids"] for question in questions]
        answers = [tokenizer(completion)["input_ids"] for completion in completions]
        width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids, mask = [], []
        for prompt, answer in zip(prompts, answers, strict=True):
            padding = [0] * (width - len(prompt) - len(answer))
            ids.append(prompt + answer + padding)
            mask.append([0] * len(prompt) + [1] * len(answer) + padding)
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    return make
