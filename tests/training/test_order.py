"""Which rows each batch is made from."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.training.data.batches import BatchOrder


def order(**changes: Any) -> BatchOrder:
    return BatchOrder(**{"rows": 10, "prompts": 4, "seed": 3, **changes})


@given(rows=st.integers(1, 40), prompts=st.integers(1, 12), seed=st.none() | st.integers(0, 2**32 - 1))
def test_an_epoch_has_each_row_once(rows: int, prompts: int, seed: int | None) -> None:
    """But for those that do not fill a batch; without a seed in the order that they have."""
    if rows < prompts:
        return
    made = order(rows=rows, prompts=prompts, seed=seed)
    for epoch in range(3):
        first = epoch * made.batches
        asked = [row for number in range(first, first + made.batches) for row in made.batch(number)]
        assert len(asked) == rows // prompts * prompts
        assert len(set(asked)) == len(asked)
        assert set(asked) <= set(range(rows))
        if seed is None:
            assert asked == list(range(len(asked)))


def test_epochs_and_seeds_differ() -> None:
    whole = order(rows=100, prompts=50)
    first, second = (whole.batch(2 * epoch) + whole.batch(2 * epoch + 1) for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first[:50] != order(rows=100, prompts=50, seed=4).batch(0)


def test_any_batch_can_be_asked_for() -> None:
    """In any order, whatever was asked for before: a resumed run asks for the last first."""
    numbers = [5, 0, 3, 5]
    together = order()
    assert [together.batch(n) for n in numbers] == [order().batch(n) for n in numbers]


def test_fewer_rows_than_a_step_asks_are_refused() -> None:
    """There would be no batch at all."""
    with pytest.raises(InputError, match="a step has 12 prompts, and there are 10 rows to train on"):
        order(prompts=12)


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_several_epochs_lose_no_row(make_trainer: Any, num_iterations: int) -> None:
    """Each row that makes a whole batch is asked for once an epoch."""
    trainer = make_trainer(max_steps=16 * num_iterations, num_iterations=num_iterations, max_tokens=2)
    asked: list[str] = []  # 32 rows, 4 a step: two epochs
    sample = trainer.sampler.sample

    def note(rows: Any, *rest: Any) -> Any:
        asked.extend(row["prompt"][-1]["content"] for row in rows[::4])
        return sample(rows, *rest)

    trainer.sampler.sample = note
    trainer.train()
    assert len(asked) == 64
    assert set(Counter(asked).values()) == {2}
    assert trainer.state.epoch == 2


def test_drawing_an_order_leaves_torchs_random_numbers_alone() -> None:
    """They belong to training, and are saved with a checkpoint."""
    before = torch.random.get_rng_state()
    order().batch(7)
    assert torch.equal(before, torch.random.get_rng_state())
