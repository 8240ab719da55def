"""Steps that count rollouts."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.training.config.dry_run import plan
from rg_env.training.config.load import load_train_config
from rg_env.training.config.step_counts import in_updates

TINY = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
STEPS = [
    "training.max_steps=640", "training.warmup_steps=64", "evaluation.every=128", "output.save_every=100",
    "logging.examples_every=0", "training.per_device_train_batch_size=16", "training.rollouts_per_step=64",
    "training.num_generations=8",
]  # fmt: skip


def test_they_become_updates() -> None:
    """All of them; two updates a batch take half its rollouts each."""
    config = load_train_config(TINY, [*STEPS, "training.rollouts_as_steps=true"])
    updates = in_updates(config)
    assert (updates.training.max_steps, updates.training.warmup_steps, updates.evaluation.every) == (10, 1, 2)
    assert (updates.output.save_every, updates.logging.examples_every) == (2, 0)
    assert in_updates(updates) == updates
    twice = load_train_config(TINY, [*STEPS, "training.rollouts_as_steps=true", "training.num_iterations=2"])
    assert in_updates(twice).training.max_steps == 20
    assert any(line.startswith("steps       10 of 64 rollouts") for line in plan(config))


def test_they_are_the_same_on_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is that of all processes together."""
    for processes, parts in ((1, "1 process x 4 micro-batches"), (2, "2 processes x 2 micro-batches")):
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        (line,) = (line for line in plan(load_train_config(TINY, STEPS)) if line.startswith("steps"))
        assert line == f"steps       640 of 64 rollouts: 8 prompts x 8 ({parts} of 16)"


def test_otherwise_they_are_updates() -> None:
    config = load_train_config(TINY, STEPS)
    assert in_updates(config) is config


def test_those_of_a_curriculum_too() -> None:
    config = load_train_config(
        TINY,
        [*STEPS, "training.rollouts_as_steps=true", "tasks=[chain_sum]", "curriculum.tasks=[chain_sum]",
         "curriculum.check_every=128", "curriculum.schedule={0: 0, 200: 1, 6400: 2}"],
    )  # fmt: skip
    curriculum = in_updates(config).curriculum
    assert curriculum is not None
    assert (curriculum.check_every, curriculum.schedule) == (2, {"0": 0, "4": 1, "100": 2})


def test_the_later_of_two_levels_wins_where_both_begin_with_one_update() -> None:
    """In whatever order the schedule names them."""
    schedule = "{6400: 2, 60: 1, 20: 3, 0: 0}"
    config = load_train_config(
        TINY,
        [*STEPS, "training.rollouts_as_steps=true", "tasks=[chain_sum]", "curriculum.tasks=[chain_sum]",
         f"curriculum.schedule={schedule}"],
    )  # fmt: skip
    curriculum = in_updates(config).curriculum
    assert curriculum is not None
    assert curriculum.schedule == {"0": 0, "1": 1, "100": 2}


@given(rollouts=st.integers(1, 10**6), batch=st.integers(1, 512))
def test_never_too_few(rollouts: int, batch: int) -> None:
    """As many updates as make at least so many rollouts, and not one more."""
    config: Any = load_train_config(TINY)
    training = config.training.model_copy(
        update={
            "rollouts_as_steps": True, "max_steps": rollouts, "rollouts_per_step": batch,
        }
    )  # fmt: skip
    updates = in_updates(config.model_copy(update={"training": training})).training.max_steps
    assert (updates - 1) * batch < rollouts <= updates * batch
