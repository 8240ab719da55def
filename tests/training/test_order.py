"""Which rows each batch is made from."""

from collections import Counter
from typing import Any

import pytest
import torch
from verifiers.trainers.grpo_trainer import RepeatSampler

from rg_env.errors import InputError
from rg_env.training.order import BatchOrder


def order(**changes: Any) -> BatchOrder:
    fields = {"rollouts": 8, "num_generations": 2, "passes": 2, "processes": 1, "process": 0, "seed": 3}
    return BatchOrder(10, **{**fields, **changes})


def test_rows_come_as_in_the_parent() -> None:
    """One process: the same rows as verifiers' sampler, epoch by epoch."""
    theirs = RepeatSampler(range(10), mini_repeat_count=2, batch_size=4, repeat_count=2, seed=3)
    ours = order()
    for epoch in range(3):
        ours.epoch = epoch
        assert [row for rows in ours for row in rows] == list(theirs)
        assert len(ours) * 8 == len(theirs)


def test_any_batch_can_be_asked_for() -> None:
    """In any order, whatever was asked for before: a run that goes on asks for the last first."""
    numbers = [5, 0, 3, 5]
    together = order()
    assert [together.batch(n) for n in numbers] == [order().batch(n) for n in numbers]


def test_each_process_has_its_own_part() -> None:
    """The parts make the batch; with the parent's loader every process had the first one."""
    parts = [next(iter(order(processes=2, process=process))) for process in (0, 1)]
    assert parts[0] + parts[1] == order().batch(0)
    assert parts[0] != parts[1]


def test_a_batch_without_whole_groups_is_refused() -> None:
    """It would mix prompts within a group."""
    with pytest.raises(InputError, match="no whole groups of num_generations=3"):
        order(num_generations=3)


def test_fewer_rows_than_a_step_asks_are_refused() -> None:
    """There would be no batch at all."""
    with pytest.raises(InputError, match="a step asks 12 prompts, and there are 10 to train on"):
        order(rollouts=24)


def test_several_epochs_ahead_of_time_lose_no_row(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that makes a whole batch is asked for once an epoch; the parent drops what it prefetched."""
    trainer = make_trainer(max_steps=16, max_tokens=2)  # 32 rows, 4 a step: two epochs
    asked: list[str] = []
    submit = trainer.async_generator.submit

    def note(trainer: Any, number: int, prompts: Any, *rest: Any) -> None:
        asked.extend(prompt[-1]["content"] for prompt in prompts[::4])
        submit(trainer, number, prompts, *rest)

    monkeypatch.setattr(trainer.async_generator, "submit", note)
    trainer.train()
    assert len(asked) == 64
    assert set(Counter(asked).values()) == {2}


def test_what_is_recorded_of_a_batch_is_its_own(make_trainer: Any) -> None:
    """Also where the next batch was made while it was waited for."""
    trainer = make_trainer(max_tokens=2)
    trainer.get_train_dataloader()
    asked = [trainer._gather_batch_data(number) for number in range(2)]
    generator = trainer.async_generator
    generator.start()
    for number, columns in enumerate(asked):
        generator.submit(trainer, number, *columns)
    generator.wait_idle()
    batches = [generator.get_batch(number) for number in range(2)]
    generator.stop()
    assert [batch.outputs.answer for batch in batches] == [columns[1] for columns in asked]
    assert batches[0].outputs.answer != batches[1].outputs.answer


def test_drawing_an_order_leaves_torchs_random_numbers_alone() -> None:
    """They belong to training, and are saved with a checkpoint."""
    before = torch.random.get_rng_state()
    order().batch(7)
    assert torch.equal(before, torch.random.get_rng_state())
