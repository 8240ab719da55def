"""Actions, such as Ctrl-C, at chosen moments of a training run."""

import os
import signal
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class At(TrainerCallback):
    """Calls `action` at an event of a step."""

    def __init__(self, step: int, action: Callable[[], Any], event: str = "on_step_begin") -> None:
        self.step, self.action = step, action
        vars(self)[event] = self._act

    def _act(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def ctrl_c() -> None:
    """Send SIGINT to this process."""
    os.kill(os.getpid(), signal.SIGINT)


def ctrl_c_in_a_backward_pass(trainer: Any, step: int) -> None:
    """Send SIGINT in the second micro-batch of the step after `step`."""
    loss_of = trainer._loss

    def interrupted(part: Any) -> Any:
        loss = loss_of(part)
        if trainer.state.global_step == step and trainer.accelerator.sync_gradients:
            ctrl_c()
        return loss

    trainer._loss = interrupted
