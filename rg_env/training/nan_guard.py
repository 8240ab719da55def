"""No update from a loss or a gradient that is not finite: the step is skipped, reported and counted; three in a row end
the run.

Weights, optimizer state and learning rate stay as they were. All processes skip together: whatever is not finite on one
of them makes the gradient, which they share, not finite everywhere. DeepSpeed's ZeRO optimizers and the loss scaler of
fp16 skip such steps themselves; the scaler finds its scale that way, so that its steps only count if the loss itself is
not finite.
"""

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator

from rg_env.errors import StoppedTogether
from rg_env.training.checkpointing.save import finite_weights
from rg_env.training.distributed import agree
from rg_env.training.strategy import StepResult

MOST_IN_A_ROW = 3


class StepGuard:
    """Counts the steps that were skipped."""

    def __init__(self, accelerator: Accelerator, learning_rate: float, bf16: bool) -> None:
        self._accelerator, self._learning_rate, self._bf16 = accelerator, learning_rate, bf16
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        self.skipped = 0
        """Steps of the run so far."""
        self._in_a_row = 0
        self._what = ""

    def counts(self) -> list[int]:
        """For `set_counts` of a resumed run."""
        return [self.skipped, self._in_a_row]

    def set_counts(self, counts: list[int]) -> None:
        """Continue from `counts()`."""
        self.skipped, in_a_row = counts
        self._in_a_row = in_a_row % MOST_IN_A_ROW  # a run that was ended gets as many again

    def note(self, result: StepResult, step: int) -> None:
        """Count step number `step`."""
        if result.skipped is None:
            self._in_a_row = 0
            return
        self.skipped += 1
        self._what = result.skipped
        if result.skipped == "gradient" and self._accelerator.mixed_precision == "fp16":
            return
        self._in_a_row += 1
        if self._accelerator.is_main_process:
            self.say(
                f"step {step}: skipped, non-finite {self._what} ({self._in_a_row}/{MOST_IN_A_ROW} consecutive); "
                "weights and optimizer unchanged"
            )

    def end_if_hopeless(self, model: Any, step: int) -> None:
        """Raise after the last skipped step that a run may have in a row, or if the weights are not finite.

        Raises:
            StoppedTogether, TrainingError: on all processes.
        """
        if not self._in_a_row:
            return
        problem = None
        if not finite_weights(model):
            problem = (
                f"the weights are not finite after step {step}: an earlier update overflowed; lower "
                f"training.learning_rate ({self._learning_rate:g}) and resume from an earlier checkpoint"
            )
        agree(self._accelerator, problem)
        if self._in_a_row >= MOST_IN_A_ROW:
            bf16 = ", or set training.bf16=false" if self._bf16 else ""
            raise StoppedTogether(
                f"{MOST_IN_A_ROW} consecutive steps were skipped, up to step {step}: non-finite {self._what}; weights "
                f"are unchanged: lower training.learning_rate or training.max_grad_norm{bf16}, and resume with "
                "--resume auto"
            )
