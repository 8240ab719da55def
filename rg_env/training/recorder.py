"""Watches a training run: evaluates on the frozen problems, writes the run's files, shows a live progress line."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from transformers import Trainer, TrainerCallback

from rg_env.training.collective import on_main
from rg_env.training.evaluation_plan import FixedEvaluation
from rg_env.training.fixed_eval import rollout_records
from rg_env.training.output import RunFiles
from rg_env.training.scores import Evaluation
from rg_env.training.summary import headline
from rg_env.training.trainer import GRPOTrainer

ROLLOUTS_KEPT = 32
"""Training rollouts written to `rollouts.jsonl` each step."""


class Recorder(TrainerCallback):
    """A callback for `GRPOTrainer`.

    Args:
        evaluation: what is asked, and when.
        interrupted: whether the run is being ended early, without the last evaluation.
        resumed: whether the run goes on from a checkpoint.
        stream: where progress goes. One line that renews itself on a terminal, a line a step elsewhere.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        files: RunFiles,
        evaluation: FixedEvaluation,
        interrupted: Callable[[], bool] = lambda: False,
        resumed: bool = False,
        stream: TextIO | None = None,
    ):
        self.trainer, self.files, self.interrupted = trainer, files, interrupted
        self.evaluation, self._resumed = evaluation, resumed
        self.stream = stream or sys.stdout
        self.evaluations: list[Evaluation] = []
        """On the main process."""
        self.evaluated = False
        """Whether there has been one, on all processes."""
        self._evaluated_at: int | None = None
        self._written: Any = None
        self._step_start = time.monotonic()
        self._step_seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._resumed:
            on_main(self.trainer.accelerator, lambda: self._take_up(state.global_step))
            self._evaluated_at = on_main(self.trainer.accelerator, self._last_evaluated)
        self._evaluate_if_due(state)

    def _take_up(self, step: int) -> None:
        """What the run had left until `step`; what it left later is made again."""
        self.files.cut_after(step)
        self.evaluations = [Evaluation.from_json(values) for values in self.files.evaluations()]
        self._line(f"going on after step {step}")

    def _last_evaluated(self) -> int | None:
        return self.evaluations[-1].step if self.evaluations else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Here and not when a step ends: the step's metrics are logged after that, and only on the main process, while
        # an evaluation is a collective act.
        self._evaluate_if_due(state)
        self._step_start = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_seconds = time.monotonic() - self._step_start
        outputs = self.trainer.async_generator.last_rollouts
        if self._writes and outputs is not None and outputs is not self._written:  # a batch can serve several steps
            self._written = outputs
            records = rollout_records(outputs, ROLLOUTS_KEPT)
            self.files.append("rollouts.jsonl", [{"step": state.global_step, **record} for record in records])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = dict(logs or {})
        if not self._writes:
            return
        if "reward" in logs:
            logs["step_time"] = round(self._step_seconds, 3)
            self._show(state, logs)
        self.files.append("metrics.jsonl", [{"step": state.global_step, **logs}])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.evaluation.plan.after and not self.interrupted():
            self.evaluate(state.global_step)

    def _evaluate_if_due(self, state: Any) -> None:
        if self.evaluation.plan.due(state.global_step, state.max_steps):
            self.evaluate(state.global_step)

    def evaluate(self, step: int) -> None:
        """Evaluate, unless done at this step. The main process does it; the others wait."""
        if not self.evaluation.questions or self._evaluated_at == step:
            return
        self._evaluated_at = step
        self.trainer.sync_weights()
        on_main(self.trainer.accelerator, lambda: self._evaluate(step))
        self.evaluated = True

    def _evaluate(self, step: int) -> None:
        start = time.monotonic()
        result = self.evaluation.run(step)
        seconds = time.monotonic() - start
        self.evaluations.append(result)
        self.files.write_json(f"eval_results/eval_step_{step}.json", result.as_json())
        self._line(f"evaluation after step {step:>3}: {headline(result)}")
        # transformers' own log: the parent's would hand out the metrics of the training step under way with it.
        Trainer.log(self.trainer, {**result.metrics(), "time/evaluation": round(seconds, 3)})

    def before_and_after(self, first: int) -> tuple[Evaluation | None, Evaluation | None]:
        """The evaluation before step `first + 1`, and the last one since, where there are such."""
        made = self.evaluations
        before = made[0] if made and self.evaluation.plan.before and made[0].step <= first else None
        return before, made[-1] if made and made[-1] is not before else None

    @property
    def _writes(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process)

    def _show(self, state: Any, logs: dict[str, Any]) -> None:
        accuracy = f"accuracy {logs['accuracy']:.2f}  " if "accuracy" in logs else ""
        line = (
            f"step {state.global_step:>3}/{state.max_steps}  reward {logs['reward']:.2f}  {accuracy}"
            f"length {logs.get('completions/mean_length', 0):.0f} tokens  {logs['step_time']:.2f} s/step"
        )
        if self.stream.isatty():
            self.stream.write(f"\r\x1b[K{line}")
            self.stream.flush()
        else:
            self._line(line)

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self.stream.isatty() else ""
        self.stream.write(f"{start}{text}\n")
        self.stream.flush()
