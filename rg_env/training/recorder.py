"""Watches a training run: evaluates on the frozen problems, writes the run's files, shows a live progress line."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from transformers import TrainerCallback

from rg_env.training.collective import on_main
from rg_env.training.config_sections import LoggingConfig
from rg_env.training.console import RunConsole, spread
from rg_env.training.fixed_eval import FixedEvaluation
from rg_env.training.output import RunFiles
from rg_env.training.scores import Evaluation
from rg_env.training.summary import headline
from rg_env.training.trainer import GRPOTrainer


class Recorder(TrainerCallback):
    """A callback for `GRPOTrainer`.

    Args:
        evaluation: what is asked, and when.
        interrupted: whether the run is being ended early, without the last evaluation.
        resumed: whether the run goes on from a checkpoint.
        stream: where progress goes (see `console`).
        logging: which questions and answers are shown, and how many kept in `rollouts.jsonl`.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        files: RunFiles,
        evaluation: FixedEvaluation,
        interrupted: Callable[[], bool] = lambda: False,
        resumed: bool = False,
        stream: TextIO | None = None,
        logging: LoggingConfig | None = None,
    ):
        self.trainer, self.files, self.interrupted = trainer, files, interrupted
        self.evaluation, self._resumed = evaluation, resumed
        self.console, self.logging = RunConsole(stream or sys.stdout), logging or LoggingConfig()
        self._examples_at = 0
        self.evaluations: list[Evaluation] = []
        """On the main process."""
        self.evaluated = False
        """Whether there has been one, on all processes."""
        self._evaluated_at: int | None = None
        self._written: Any = None
        trainer.guard.say = self._line
        if trainer.curriculum is not None:
            trainer.curriculum.say = self._line

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._examples_at = state.global_step
        if self._resumed:
            on_main(self.trainer.accelerator, lambda: self._take_up(state.global_step))
            self._evaluated_at = on_main(self.trainer.accelerator, self._last_evaluated)
        self._evaluate_if_due(state)

    def _take_up(self, step: int) -> None:
        """What the run had left until `step`; what it left later is made again."""
        self.files.cut_after(step)
        self.evaluations = [Evaluation.from_json(values) for values in self.files.evaluations()]
        self._line(f"resuming after step {step}")

    def _last_evaluated(self) -> int | None:
        return self.evaluations[-1].step if self.evaluations else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Here and not when a step ends: the step's metrics are logged after that, and only on the main process, while
        # an evaluation is a collective act.
        self._evaluate_if_due(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        outputs = self.trainer.rollouts
        if self._writes and outputs is not None and outputs is not self._written:  # a batch can serve several steps
            self._written = outputs
            records = outputs.records(self.logging.rollouts_kept)
            self.files.append("rollouts.jsonl", [{"step": state.global_step, **record} for record in records])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = dict(logs or {})
        if not self._writes:
            return
        if "reward" in logs:
            self.console.step(state.global_step, state.max_steps, logs)
            self._show_examples(state.global_step)
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
        metrics = on_main(self.trainer.accelerator, lambda: self._evaluate(step))
        self.evaluated = True
        self.trainer.notify("on_evaluate", metrics=metrics)

    def _evaluate(self, step: int) -> dict[str, float]:
        start = time.monotonic()
        result = self.evaluation.run(step)
        seconds = time.monotonic() - start
        self.evaluations.append(result)
        self.files.write_json(f"eval_results/eval_step_{step}.json", result.as_json())
        self._line(f"evaluation after step {step:>3}: {headline(result)}")
        found = {**result.metrics(), "time/evaluation": round(seconds, 3)}
        self.trainer.report({**found, "rollouts": self.trainer.rollouts_so_far})
        return found

    def before_and_after(self, first: int) -> tuple[Evaluation | None, Evaluation | None]:
        """The evaluation before step `first + 1`, and the last one since, where there are such."""
        made = self.evaluations
        before = made[0] if made and self.evaluation.plan.before and made[0].step <= first else None
        return before, made[-1] if made and made[-1] is not before else None

    @property
    def _writes(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process)

    def _show_examples(self, step: int) -> None:
        every, outputs = self.logging.examples_every, self.trainer.rollouts
        if every and outputs is not None and step // every > self._examples_at // every:
            self._examples_at = step
            self.console.examples(step, spread(outputs.records(), self.logging.num_examples))

    def _line(self, text: str) -> None:
        self.console.line(text)
