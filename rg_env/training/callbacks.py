"""Callbacks of transformers (`TrainerCallback`) around a trainer that is not transformers'.

They see every event but `on_predict` and `on_prediction_step`: evaluations sample completions. `on_evaluate` comes with
the metrics of an evaluation. `control.should_training_stop` and `control.should_save` have an effect, and must be the
same on all processes.
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState


class Callbacks:
    """Calls each callback in order, with what transformers' trainer hands them.

    Args:
        shared: keyword arguments of every call (`model`, `processing_class`, `optimizer`, `lr_scheduler`).
    """

    def __init__(self, callbacks: list[TrainerCallback], **shared: Any) -> None:
        self._shared = shared
        self.all: list[TrainerCallback] = []
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """After those that are there."""
        self.all.append(callback() if isinstance(callback, type) else callback)

    def remove(self, callback: TrainerCallback) -> None:
        """If it is there."""
        self.all = [each for each in self.all if each is not callback]

    def call(
        self, event: str, args: Any, state: TrainerState, control: TrainerControl, **details: Any
    ) -> TrainerControl:
        """Let each see `event`; what the last one returned that returned something."""
        for callback in list(self.all):
            control = getattr(callback, event)(args, state, control, **self._shared, **details) or control
        return control
