"""No update from a loss or a gradient that is not finite: the step is skipped, told and counted; three end the run.

The weights, the optimizer's state and the learning rate stay as they were. All processes skip together: what is not
finite on one of them makes the gradient, which they share, not finite everywhere. That costs nothing as long as all is
well but a look at the norm of the gradient, which is computed anyway.

DeepSpeed's ZeRO optimizers skip such steps themselves. So does float16's loss scaler, which finds its scale that way:
its steps are counted, and end the run only where the loss itself is not finite.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from rg_env.errors import StoppedTogether
from rg_env.training.collective import agree

MOST_IN_A_ROW = 3


def through_gradient(loss: torch.Tensor) -> torch.Tensor:
    """`loss ()` as it is, to the bit; but where it is not finite, neither is any gradient of it."""
    return loss * (1 + 0 * loss.detach())


def finite_weights(model: Any) -> bool:
    """Whether all weights that are trained are finite, of shards those of this process."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return all(bool(getattr(parameter, "ds_tensor", parameter).isfinite().all()) for parameter in trained)


class StepGuard(TrainerCallback):
    """Skips steps of `trainer`, one of transformers'. Its training step passes the loss through `noted`.

    Raises, on all processes when the next step begins or the run is over:
        StoppedTogether: so many steps in a row were skipped; or the weights are not finite.
    """

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        self.skipped = 0
        """Steps of the run so far."""
        self._in_a_row = 0
        self._skips = False
        self._what = ""
        """Of the last step that was skipped: what was not finite."""
        self._norm: Any = None
        self._loss: torch.Tensor | float = 0.0
        """Of the step's passes so far, on this process."""
        self._clip = trainer.accelerator.clip_grad_norm_
        trainer.accelerator.clip_grad_norm_ = self._clipped

    def _clipped(self, *args: Any, **kwargs: Any) -> Any:
        self._norm = self._clip(*args, **kwargs)
        return self._norm

    def noted(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss `()` of a pass as it is to be logged: 0 where it is not finite."""
        self._loss = self._loss + loss
        return torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0)

    def counts(self) -> list[int]:
        """Steps skipped, and those in a row now, for `set_counts` of a run that goes on."""
        return [self.skipped, self._in_a_row]

    def set_counts(self, counts: list[int]) -> None:
        self.skipped, in_a_row = counts
        self._in_a_row = in_a_row % MOST_IN_A_ROW  # a run that was ended so gets as many again

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.set_counts([0, 0])
        self._loss, self._norm, self._skips = 0.0, None, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_if_hopeless(state.global_step)
        self._loss = 0.0  # also of a step that was interrupted

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_if_hopeless(state.global_step)

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        norm, self._norm = self._norm, None
        optimizer, accelerator = self._trainer.optimizer, self._trainer.accelerator
        if self._trainer.is_deepspeed_enabled or accelerator.scaler is not None:
            return
        if norm is None:  # gradients are not clipped
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
        skips = not math.isfinite(norm)
        if skips:
            optimizer.zero_grad()  # optimizers pass over parameters without gradient
        optimizer._is_overflow = skips  # accelerate's word for it: the learning rate waits, too

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._skips = self._trainer.accelerator.optimizer_step_was_skipped

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._skips:
            self._in_a_row = 0
            return
        self.skipped += 1
        accelerator = self._trainer.accelerator
        bad = torch.tensor(float(not math.isfinite(self._loss)), device=accelerator.device)
        self._what = "loss" if accelerator.reduce(bad, reduction="sum").item() > 0 else "gradient"
        if self._what == "gradient" and accelerator.mixed_precision == "fp16":
            return
        self._in_a_row += 1
        if state.is_world_process_zero:
            self.say(
                f"step {state.global_step}: skipped, for the {self._what} is not finite; weights and optimizer are as "
                f"they were ({self._in_a_row} in a row; {MOST_IN_A_ROW} end the run)"
            )

    def _end_if_hopeless(self, step: int) -> None:
        if not (self._skips and self._in_a_row):
            return
        problem = None
        if not finite_weights(self._trainer.model):
            problem = (
                f"the weights are not finite after step {step}: an update before has overflowed: lower "
                f"training.learning_rate ({self._trainer.args.learning_rate:g}) and go on from an earlier checkpoint"
            )
        agree(self._trainer.accelerator, problem)
        if self._in_a_row >= MOST_IN_A_ROW:
            bf16 = ", or set training.bf16=false" if self._trainer.args.bf16 else ""
            raise StoppedTogether(
                f"{MOST_IN_A_ROW} steps in a row were skipped, up to step {step}, for the {self._what} is not finite; "
                "the weights are as they were before: lower training.learning_rate or training.max_grad_norm"
                f"{bf16}, and go on with --resume auto"
            )
