"""Actions, such as Ctrl-C, at chosen moments of a training run."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


class At(TrainerCallback):
    """Callback that calls `action` when the step count is `step` at an event."""

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


def interrupted(command: Sequence[str], folder: Path, after: str, **options: Any) -> tuple[str, str, float]:
    """Run a program in `folder`, and send SIGINT after a line that begins with `after`. Return the rest of the
    output, the errors, and the seconds until the program ended; the exit code must be 130."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, **pipes, **options)
    try:
        assert process.stdout
        next(line for line in process.stdout if line.startswith(after))
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return printed, errors, time.monotonic() - start
