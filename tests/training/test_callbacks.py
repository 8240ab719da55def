"""Callbacks of transformers see the same events as with transformers' own trainer."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from rg_env.training import EvaluationPlan, train

NEVER = {"on_predict", "on_prediction_step", "on_push_begin"}
EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_") and name not in NEVER]


class Seen(TrainerCallback):
    """A callback that records each event with its step and its arguments."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.given: dict[str, dict[str, Any]] = {}
        vars(self).update({event: partial(self._note, event) for event in EVENTS})

    def _note(self, event: str, args: Any, state: Any, control: Any, **given: Any) -> None:
        assert isinstance(state, TrainerState)
        assert isinstance(control, TrainerControl)
        self.events.append((event, state.global_step))
        self.given[event] = {"args": args, "max_steps": state.max_steps, **given}


def step(number: int) -> list[tuple[str, int]]:
    """The events of an optimizer step of two micro-batches."""
    return [
        ("on_step_begin", number - 1),
        ("on_substep_end", number - 1),
        ("on_pre_optimizer_step", number - 1),
        ("on_optimizer_step", number - 1),
        ("on_step_end", number),
        ("on_log", number),
    ]


def test_every_event_comes_in_order(make_trainer: Any, make_env: Any) -> None:
    """Each event has its step. 8 rows make two steps per epoch, and a checkpoint follows the second step."""
    seen = Seen()
    trainer = make_trainer(
        env=make_env(num_train_examples=8), max_steps=3, max_tokens=4, save_steps=2, callbacks=[seen]
    )
    assert seen.events == [("on_init_end", 0)]
    trainer.train()
    assert seen.events[1:] == [
        ("on_train_begin", 0),
        ("on_epoch_begin", 0),
        *step(1),
        *step(2),
        ("on_save", 2),
        ("on_epoch_end", 2),
        ("on_epoch_begin", 2),
        *step(3),
        ("on_epoch_end", 3),
        ("on_train_end", 3),
    ]
    assert {event for event, _ in seen.events} == set(EVENTS) - {"on_evaluate"}
    for event, given in seen.given.items():
        assert given["args"] is trainer.args
        assert given["model"] is trainer.model
        assert given["processing_class"] is trainer.processing_class
        assert given["optimizer"] is trainer.optimizer
        assert given["max_steps"] == (0 if event == "on_init_end" else 3)
    assert seen.given["on_log"]["logs"]["loss"] == trainer.state.log_history[-1]["loss"]


def test_evaluations_are_events(make_trainer: Any) -> None:
    seen = Seen()
    train(make_trainer(max_steps=1, max_tokens=4, callbacks=[seen]), evaluation=EvaluationPlan(every=1))
    assert [step for event, step in seen.events if event == "on_evaluate"] == [0, 1]
    assert 0 <= seen.given["on_evaluate"]["metrics"]["eval/accuracy"] <= 1


def test_control_ends_and_saves_a_run(make_trainer: Any, tmp_path: Path) -> None:
    class Control(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = state.global_step == 1
            control.should_training_stop = state.global_step == 2

    seen = Seen()
    trainer = make_trainer(max_steps=5, max_tokens=4, callbacks=[Control(), seen])
    trainer.train()
    assert trainer.state.global_step == 2
    assert seen.events[-1] == ("on_train_end", 2)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    assert [step for event, step in seen.events if event == "on_save"] == [1]


def test_a_returned_control_takes_effect(make_trainer: Any) -> None:
    """As in transformers, None keeps the current control, and callback classes are instantiated."""

    class Returns(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return TrainerControl(should_training_stop=True)

    trainer = make_trainer(callbacks=[Returns, TrainerCallback()], max_steps=3, max_tokens=4)
    trainer.train()
    assert trainer.state.global_step == 1
    trainer.remove_callback(trainer.callbacks[0])
    trainer.train()
    assert trainer.state.global_step == 3
