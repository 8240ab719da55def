"""Watches a training run: evaluates on the frozen problems, writes the run's files, shows a live progress line."""

import sys
from collections.abc import Callable
from typing import Any, TextIO

from transformers import Trainer, TrainerCallback

from rg_env.training.collective import on_main
from rg_env.training.config import LoggingConfig
from rg_env.training.console import RunConsole, spread
from rg_env.training.fixed_eval import Evaluation, evaluate, read_evaluations, rollout_records
from rg_env.training.output import RunFiles
from rg_env.training.trainer import GRPOTrainer


class Recorder(TrainerCallback):
    """A callback for `GRPOTrainer`.

    Args:
        eval_every: optimizer steps between evaluations; None: a fifth of the run. Besides, one is made before the first
            step and after the last.
        interrupted: whether the run is being ended early, without the last evaluation.
        resumed: whether the run goes on from a checkpoint.
        stream: where progress goes (see `console`).
        logging: which questions and answers are shown, and how many kept in `rollouts.jsonl`.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        files: RunFiles,
        eval_every: int | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        resumed: bool = False,
        stream: TextIO | None = None,
        logging: LoggingConfig | None = None,
    ):
        self.trainer, self.files, self.interrupted = trainer, files, interrupted
        self.eval_every, self._resumed = eval_every or 0, resumed
        self.console, self.logging = RunConsole(stream or sys.stdout), logging or LoggingConfig()
        self._examples_at = 0
        self.evaluations: list[Evaluation] = []
        """On the main process."""
        self.evaluated = False
        """Whether there has been one, on all processes."""
        self._evaluated_at: int | None = None
        self._written: Any = None
        if trainer.curriculum is not None:
            trainer.curriculum.say = self._line

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.eval_every = self.eval_every or max(1, state.max_steps // 5)
        self._examples_at = state.global_step
        if self._resumed:
            on_main(self.trainer.accelerator, lambda: self._take_up(state.global_step))
            self._evaluated_at = on_main(self.trainer.accelerator, self._last_evaluated)
            if state.global_step % self.eval_every:  # not a step that an unbroken run evaluates
                return
        self.evaluate(state.global_step)

    def _take_up(self, step: int) -> None:
        """What the run had left until `step`; what it left later is made again."""
        self.files.cut_after(step)
        self.evaluations = read_evaluations(self.files.folder)
        self._line(f"going on after step {step}")

    def _last_evaluated(self) -> int | None:
        return self.evaluations[-1].step if self.evaluations else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Here and not when a step ends: the step's metrics are logged after that, and only on the main process, while
        # an evaluation is a collective act.
        if state.global_step % self.eval_every == 0:
            self.evaluate(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        outputs = self.trainer.async_generator.last_rollouts
        if self._writes and outputs is not None and outputs is not self._written:  # a batch can serve several steps
            self._written = outputs
            records = rollout_records(outputs, self.logging.rollouts_kept)
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
        if not self.interrupted():
            self.evaluate(state.global_step)

    def evaluate(self, step: int) -> None:
        """Evaluate, unless done at this step. The main process does it; the others wait."""
        trainer = self.trainer
        if trainer.env.eval_dataset is None or self._evaluated_at == step:
            return
        self._evaluated_at = step
        trainer.sync_weights()
        on_main(trainer.accelerator, lambda: self._evaluate(step))
        self.evaluated = True

    def _evaluate(self, step: int) -> None:
        trainer = self.trainer
        generator = trainer.async_generator
        arguments = trainer._get_sampling_args()

        async def job(client: Any) -> Evaluation:
            return await evaluate(trainer.env, client, generator.model_name, arguments, step=step)

        with trainer.sampler.aside():  # with or without an evaluation, training goes on alike
            result = generator.run_job(job)
        self.evaluations.append(result)
        self.files.write_json(f"eval_results/eval_step_{step}.json", result.as_json())
        self._line(f"evaluation after step {step:>3}: {headline(result)}")
        # transformers' own log: the parent's would hand out the metrics of the training step under way with it.
        Trainer.log(trainer, result.metrics())

    @property
    def _writes(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process)

    def _show_examples(self, step: int) -> None:
        every, outputs = self.logging.examples_every, self.trainer.async_generator.last_rollouts
        if every and outputs is not None and step // every > self._examples_at // every:
            self._examples_at = step
            self.console.examples(step, spread(rollout_records(outputs), self.logging.num_examples))

    def _line(self, text: str) -> None:
        self.console.line(text)


def headline(evaluation: Evaluation) -> str:
    """An evaluation in one line."""
    scores = evaluation.overall
    parts = [f"reward {scores.reward:.2f}"]
    if scores.accuracy is not None:
        parts = [
            f"accuracy {scores.accuracy:.2f} ± {scores.accuracy_se:.2f}",
            f"greedy {scores.greedy_accuracy:.2f} ± {scores.greedy_accuracy_se:.2f}",
            *parts,
        ]
    if scores.mean_completion_tokens is not None:
        parts.append(f"length {scores.mean_completion_tokens:.0f} tokens")
    return "  ".join([*parts, f"on {scores.n} problems"])
