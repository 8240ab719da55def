"""Which rows each batch is made from."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from rg_env.errors import InputError
from rg_env.training import GRPOConfig, load_train_config
from rg_env.training.rollouts import BatchOrder

CONFIGS = Path(__file__).parents[2] / "configs"


def order(**changes: Any) -> BatchOrder:
    return BatchOrder(**{"rows": 10, "prompts": 4, "seed": 3, **changes})


def test_any_batch_can_be_asked_for() -> None:
    """In any order: a resumed run needs the last one first."""
    numbers = [5, 0, 3, 5]
    together = order()
    assert [together.batch(n) for n in numbers] == [order().batch(n) for n in numbers]


def test_fewer_rows_than_a_step_asks_are_refused() -> None:
    """There would be no batch at all."""
    with pytest.raises(InputError, match="a step has 12 prompts, more than the 10 rows to train on"):
        order(prompts=12)


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_several_epochs_lose_no_row(make_trainer: Any, num_iterations: int) -> None:
    """Each row of a complete batch is used once per epoch."""
    trainer = make_trainer(max_steps=16 * num_iterations, num_iterations=num_iterations, max_tokens=2)
    used: list[str] = []  # 32 rows, 4 a step: two epochs
    sample = trainer.sampler.sample

    def note(rows: Any, *rest: Any) -> Any:
        used.extend(row["prompt"][-1]["content"] for row in rows[::4])
        return sample(rows, *rest)

    trainer.sampler.sample = note
    trainer.train()
    assert len(used) == 64
    assert set(Counter(used).values()) == {2}
    assert trainer.state.epoch == 2


@pytest.mark.parametrize(("epochs", "iterations", "steps"), [(1, 1, 8), (2.5, 1, 20), (0.1, 1, 1), (2, 2, 32)])
def test_epochs_set_the_number_of_steps(make_trainer: Any, epochs: float, iterations: int, steps: int) -> None:
    """32 rows, 4 a step."""
    assert make_trainer(num_train_epochs=epochs, num_iterations=iterations).args.max_steps == steps


@pytest.mark.parametrize("more", [[], ["training.rollouts_as_steps=true", "training.warmup_steps=1280"]])
def test_epochs_of_a_config_set_the_number_of_steps(more: list[str]) -> None:
    """2,000 rows, 16 a step: 125 steps for an epoch. Other numbers may be counted in rollouts."""
    config = load_train_config(
        CONFIGS / "train" / "tiny.yaml", ["training.num_train_epochs=0.5", "training.max_new_tokens=33", *more]
    )
    training = config.in_updates().training
    assert (training.max_steps, training.max_tokens, training.num_train_epochs) == (63, 33, None)
    assert training.warmup_steps == (10 if more else 0)


def test_other_trainers_name_of_the_token_limit_is_accepted() -> None:
    assert GRPOConfig(max_new_tokens=7).max_tokens == 7
    with pytest.raises(InputError, match="max_new_tokens=-1: must be a whole number of at least 1"):
        GRPOConfig(max_new_tokens=-1)


def test_drawing_an_order_leaves_torchs_random_numbers_alone() -> None:
    """They belong to training, and are saved with a checkpoint."""
    before = torch.random.get_rng_state()
    order().batch(7)
    assert torch.equal(before, torch.random.get_rng_state())
