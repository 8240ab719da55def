"""An environment and trainers for the tiny policy, small enough for a laptop, without stand-ins."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.tiny import POLICY_DIR, TASKS


@pytest.fixture(scope="package", autouse=True)
def kept_plots() -> Iterator[None]:
    from kept_plots import plots_are_kept

    with plots_are_kept():
        yield


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
    """Return a function that makes an environment with 32 training and 8 evaluation rows. Its keywords are those of
    `ReasoningGym`."""
    from rg_env.core.environment import ReasoningGym

    def make(**changes: Any) -> Any:
        return ReasoningGym(**{"gym": gym, "num_train_examples": 32, "num_eval_examples": 8, **changes})

    return make


@pytest.fixture
def make_args(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes arguments for 4 prompts x 4 rollouts per step in 2 micro-batches. Its keywords are
    fields of `GRPOConfig`."""
    from rg_env.training import GRPOConfig

    def make(**changes: Any) -> Any:
        fields: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 2,
            "learning_rate": 1e-4,
            "warmup_steps": 0,
            "rollouts_per_step": 16,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_prompt_length": 160,
            "max_tokens": 24,
            "use_cpu": True,
            "bf16": False,
        }
        return GRPOConfig(**{**fields, **changes})

    return make


@pytest.fixture
def new_precision() -> Iterator[None]:
    """Allow trainers with different precisions in one process, which accelerate otherwise refuses."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.fixture
def make_trainer(model: Any, tokenizer: Any, make_env: Any, make_args: Any) -> Callable[..., Any]:
    """Return a function that makes a trainer, with the constructor's keywords and fields of `GRPOConfig`."""
    from rg_env.training import GRPOTrainer

    def make(*, env: Any = None, model: Any = model, **given: Any) -> Any:
        names = ("callbacks", "optimizers", "peft_config", "engine", "curriculum")
        own = {name: given.pop(name) for name in names if name in given}
        return GRPOTrainer(model, env or make_env(), make_args(**given), tokenizer, **own)

    return make


@pytest.fixture
def make_batch(tokenizer: Any) -> Callable[[list[str], list[str]], dict[str, torch.Tensor]]:
    """Return a function that makes a batch of questions and completions.

    The batch has right-padded `input_ids (B, L)`, and `loss_mask (B, L - 1) bool` of `input_ids[:, 1:]`, which is true
    on completion tokens.
    """

    def make(questions: list[str], completions: list[str]) -> dict[str, torch.Tensor]:
        prompts = [tokenizer(question)["input_ids"] for question in questions]
        answers = [tokenizer(completion)["input_ids"] for completion in completions]
        width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids, mask = [], []
        for prompt, answer in zip(prompts, answers, strict=True):
            padding = [0] * (width - len(prompt) - len(answer))
            ids.append(prompt + answer + padding)
            mask.append([0] * len(prompt) + [1] * len(answer) + padding)
        return {"input_ids": torch.tensor(ids), "loss_mask": torch.tensor(mask, dtype=torch.bool)[:, 1:]}

    return make
