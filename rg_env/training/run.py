"""Perform a complete run: evaluate, train, evaluate again, and write all results to the output folder.

    results = train(trainer, settings={"task": "leg_counting"})
    results = train(trainer, resume="auto")    # in a new process: resumes from the newest checkpoint

`Recorder` evaluates on the frozen questions, writes the run's files and shows progress. `_Interruption` ends a run on
Ctrl-C. Monitors, uploads and trackers are callbacks in their own modules.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rg_env.core.environment import Environment
from rg_env.core.processes import TOGETHER_S, entered, print_once, world_size
from rg_env.core.run_folder import RunFolder, locked, not_empty, removed_on_error
from rg_env.core.text import counted
from rg_env.core.user_code import sealed, sources
from rg_env.errors import InputError, StoppedTogether, TrainingError, from_interrupt
from rg_env.evaluation.config import SamplingConfig
from rg_env.evaluation.questions import own_rows
from rg_env.evaluation.results import Results, read_evaluations
from rg_env.tiny import POLICY_DIR, TINY
from rg_env.training.checkpointing.checkpoints import check_fit, chosen, final_results
from rg_env.training.checkpointing.files import saved_step
from rg_env.training.collectives import on_main
from rg_env.training.config.schema import HubConfig, LoggingConfig, MonitorsConfig, TrainConfig
from rg_env.training.evaluation import EvaluationPlan, FixedEvaluation, metrics_of
from rg_env.training.hub_uploads import Uploads
from rg_env.training.monitors import MonitorCallback
from rg_env.training.preflight import AUTO
from rg_env.training.reporting.console import RunConsole, headline, print_summary, spread
from rg_env.training.reporting.metrics import hardware
from rg_env.training.reporting.trackers import Trackers
from rg_env.training.trainer import GRPOTrainer

_REQUEUED_S = 60.0
"""Seconds that a resumed run waits for another process that is still writing to its folder."""


class Recorder(TrainerCallback):
    """Evaluates, writes the run's files, and shows progress.

    Args:
        evaluation: the evaluation and its schedule.
        logging: settings for examples on the console, and for the number of rollouts per step in `rollouts.jsonl`.
        interruption: tracks whether the run is ending early, without the last evaluation.
        resumed: whether the run was resumed from a checkpoint.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        folder: RunFolder,
        evaluation: FixedEvaluation,
        logging: LoggingConfig,
        interruption: "_Interruption",
        resumed: bool,
    ):
        self.trainer, self.folder, self.evaluation, self.logging = trainer, folder, evaluation, logging
        self._interruption, self._resumed, self._is_main = interruption, resumed, trainer.accelerator.is_main_process
        self.console = RunConsole(sys.stdout)
        self._examples_at = self._first = 0
        self.evaluations: list[Results] = []
        """Results of the evaluations so far. Only the main process has these results."""
        self.evaluated = False
        """Whether an evaluation has been performed since the run was started or resumed. All processes have this
        value."""
        self.alarms: list[str] = []
        """Monitor lines to print after the step's line."""
        self.on_examples: Callable[[int, list[dict[str, Any]]], Any] = lambda step, records: None
        """Function that is called with a step and the examples printed at that step."""
        self._evaluated_at: int | None = None
        trainer.guard.say = self.console.line
        if trainer.curriculum is not None:
            trainer.curriculum.say = self.console.line

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._examples_at = self._first = state.global_step
        if self._resumed:
            self._evaluated_at = on_main(self.trainer.accelerator, lambda: self._resume(state.global_step))
        self._evaluate_if_due(state)

    def _resume(self, step: int) -> int | None:
        """Read the run's files up to `step`, delete later records, and return the step of the last evaluation."""
        self.folder.cut_after(step)
        self.evaluations = read_evaluations(self.folder, step)
        self.console.line(f"resuming after step {step}")
        return self.evaluations[-1].step if self.evaluations else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Do not evaluate in `on_step_end`, because the step's metrics are logged after `on_step_end`. Do not evaluate
        # in `on_log`, because logging an evaluation's metrics calls `on_log` again, but only on the main process.
        self._evaluate_if_due(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = dict(logs or {})
        if not self._is_main:
            return
        if "loss" in logs:
            self.console.step(state.global_step, state.max_steps, logs)
        if "reward" in logs:  # otherwise, the step used rollouts from an earlier step
            self._keep_rollouts(state.global_step)
        while self.alarms:
            self.console.line(self.alarms.pop(0))
        self.folder.add_metrics(state.global_step, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.evaluation.plan.after and not self._interruption.happened:
            if state.global_step > self._first:
                # Save now so that a run killed during its last evaluation can be resumed.
                self.trainer.save_checkpoint()
            self.evaluate(state.global_step)

    def _evaluate_if_due(self, state: Any) -> None:
        if self.evaluation.plan.due(state.global_step, state.max_steps):
            self.evaluate(state.global_step)

    def evaluate(self, step: int) -> None:
        """Evaluate, unless there are no questions or this step has already been evaluated. The main process evaluates,
        and all other processes wait."""
        if not self.evaluation.questions or self._evaluated_at == step:
            return
        self._evaluated_at = step
        self.trainer.sync_weights()
        metrics = on_main(self.trainer.accelerator, lambda: self._evaluate(step))
        self.evaluated = True
        self.trainer.notify("on_evaluate", metrics=metrics)

    def _evaluate(self, step: int) -> dict[str, float]:
        start = time.monotonic()
        if not self.evaluations:  # with a large model, this line is the first sign of progress
            self.console.line(f"evaluating: {counted(self.evaluation.answers, 'answer')} ...")
        result = self.evaluation.run(step, self.console.evaluating)
        seconds = time.monotonic() - start
        self.evaluations.append(result)
        self.folder.write_evaluation(step, result.model_dump(mode="json"))
        self.console.line(f"evaluation after step {step:>3}: {headline(result)}")
        metrics = {**metrics_of(result), "time/evaluation": round(seconds, 3)}
        self.trainer.report({**metrics, "rollouts": self.trainer.rollouts_so_far})
        return metrics

    def before_and_after(self, first: int) -> tuple[Results | None, Results | None]:
        """Return the evaluation before training (the first one, if it was made at step `first` or earlier and
        `plan.before` is set) and the last other evaluation. Either can be None."""
        made = self.evaluations
        before = made[0] if made and self.evaluation.plan.before and (made[0].step or 0) <= first else None
        return before, made[-1] if made and made[-1] is not before else None

    def results(
        self, first: int, checkpoint: Path | None, seconds: float, watch: MonitorCallback, failure: Exception | None
    ) -> dict[str, Any]:
        """Return the contents of `train_results.json` for a run that started at step `first`."""
        before, after = self.before_and_after(first)
        return {
            "model": _model_name(self.trainer),
            "engine": self.trainer.engine.name,
            "steps": self.trainer.state.global_step,
            "resumed_from": None if checkpoint is None else str(checkpoint),
            "seconds": round(seconds, 2),
            "interrupted": self._interruption.happened,
            "stopped_by": watch.stopped_by,
            "monitors": [alarm.line for alarm in watch.alarms],
            "error": (str(failure) or type(failure).__name__) if failure else None,
            "eval_before": before.summary() if before else None,
            "eval_after": after.summary() if after else None,
        }

    def write(self, results: dict[str, Any], first: int) -> None:
        """Write the run's results and plots, and print a summary."""
        from rg_env.evaluation.plots.curves import plot_run  # imports matplotlib, which training does not need

        self.folder.write_results(results)
        plot_run(self.folder.path)
        print_summary(self.folder.path, results, *self.before_and_after(first))

    def _keep_rollouts(self, step: int) -> None:
        """Write the batch's rollouts to rollouts.jsonl and, if examples are due, print some of them."""
        every, rollouts = self.logging.examples_every, self.trainer.rollouts
        assert rollouts is not None
        self.folder.add_rollouts(step, rollouts.records(self.logging.rollouts_kept))
        if every and step // every > self._examples_at // every:
            self._examples_at = step
            shown = spread(rollouts.records(), self.logging.num_examples)
            self.console.examples(step, shown)
            self.on_examples(step, shown)


def train(
    trainer: GRPOTrainer,
    *,
    config: TrainConfig | None = None,
    settings: dict[str, Any] | None = None,
    evaluation: EvaluationPlan | None = None,
    resume: str | Path | None = None,
    logging: LoggingConfig | None = None,
    monitors: MonitorsConfig | None = None,
    hub: HubConfig | None = None,
) -> dict[str, Any]:
    """Train, and evaluate on frozen questions before, during and after training.

    On Ctrl-C, SIGTERM or an error, the weights and the results so far are saved. If an error occurs in the middle of an
    update, or on only one of several processes, the weights are not saved. After a second Ctrl-C in the middle of an
    update, nothing is saved.

    Args:
        trainer: the trainer. Files are written to `trainer.args.output_dir` (see `RunFolder`).
        config: the trainer's config, saved as `config.yaml` so that the run can be repeated.
        settings: values to write to `config.yaml` in addition to the trainer's arguments, if there is no config.
        evaluation: questions, sampling and schedule of the evaluation. Default: one sampled and one greedy answer for
            each evaluation row in the trainer's environment, before training and after each fifth of the run.
        resume: checkpoint to continue from as if the run had never stopped. "auto" selects the newest complete
            checkpoint in the output folder, if there is one.
        logging: console output, recorded rollouts, and experiment trackers that receive the metrics (see `trackers`).
        monitors: rules that print a warning or end the run (see `monitors`). Default: the trainer's own
            `MonitorCallback`, if it has one. Otherwise, all rules print a warning, and no rule ends the run.
        hub: uploads of the run (see `hub_uploads`). Default: no uploads.

    Returns:
        The contents of `train_results.json` on the first process, and an empty dictionary on all other processes.

    Raises:
        InputError: the trainer cannot continue from `resume`, a tracker cannot be started, or the evaluation is
            invalid.
        OutputFolderError: without `resume`, the output folder contains another run, or another process is writing to
            it.
        TrainingError: the run ended without completing a step, although it was not interrupted.
        KeyboardInterrupt: the run was interrupted before it had anything to save (in which case a new run leaves no
            files), or the run was interrupted twice.
        Exception: any error that ended the run, raised after the results so far have been saved.
    """
    with _owned_folder(trainer, resume):
        return _train(trainer, config, settings, evaluation, resume, logging, monitors, hub)


def _train(
    trainer: GRPOTrainer,
    config: TrainConfig | None,
    settings: dict[str, Any] | None,
    evaluation: EvaluationPlan | None,
    resume: str | Path | None,
    logging: LoggingConfig | None,
    monitors: MonitorsConfig | None,
    hub: HubConfig | None,
) -> dict[str, Any]:
    on_all, main = trainer.accelerator, trainer.accelerator.is_main_process
    checkpoint = None if resume is None else on_main(on_all, lambda: _checkpoint(trainer, resume))
    first = 0 if checkpoint is None else saved_step(checkpoint) or 0
    if resume == AUTO and first == trainer.args.max_steps:
        run = RunFolder(trainer.output_dir)
        if complete := on_main(on_all, lambda: final_results(run, first)):
            print_once(f"{run.path} is complete, at step {first} of {first}; increase max_steps to continue")
            return complete if main else {}
    fixed_evaluation = FixedEvaluation(trainer, evaluation or EvaluationPlan())
    folder, settings, logging = RunFolder.create(trainer.output_dir), settings or {}, logging or LoggingConfig()
    if checkpoint is not None:
        fixed_evaluation.check_same_questions(on_main(on_all, lambda: read_evaluations(folder, first)))
    if main and (problem := trainer.checkpoints.room_problem()):
        print(problem, flush=True)

    interruption = _Interruption(trainer)
    recorder = Recorder(trainer, folder, fixed_evaluation, logging, interruption, resumed=checkpoint is not None)
    watch = _monitor(trainer, monitors, recorder.alarms.append)
    uploads = Uploads(hub or HubConfig(), folder.path, main=main, say=recorder.console.line)
    trainer.checkpoints.is_in_use = uploads.is_uploading
    trackers = Trackers(trainer, logging, folder.path)
    recorder.on_examples = trackers.completions

    def start() -> None:
        on_main(on_all, lambda: _describe(folder, fixed_evaluation, config, settings, first))
        trackers.start()
        trainer.train(resume_from_checkpoint=checkpoint)

    began = time.monotonic()
    with interruption.handled(), _attached(trainer, watch, recorder, uploads, trackers, interruption):
        failure, together = _outcome(start, interruption)
        recorder.console.close()
        trackers.finish(failed=failure is not None)
    seconds, moved = time.monotonic() - began, trainer.state.global_step > first

    if not (failure or interruption.happened or moved) and first < trainer.args.max_steps:
        failure = TrainingError(
            "the run ended without a single optimizer step: did a callback stop the run before the first step?"
        )
    if (failure or interruption.happened) and not (moved or recorder.evaluated):
        # There is nothing to save, and the optimizer has no state before training begins.
        if main and checkpoint is None:
            folder.discard(trackers.new_folders)
        raise failure or KeyboardInterrupt
    savable = together and trainer.consistent  # a single process cannot save a sharded model
    if interruption.happened and not savable:
        raise KeyboardInterrupt

    if savable and moved:
        try:
            failure = _after_saving(trainer.save_checkpoint, failure)
        except KeyboardInterrupt:
            last = folder.last_checkpoint()
            kept = f"the last checkpoint is {last.name}" if last else "there is no earlier checkpoint"
            resume_with = f". Resume with: {_resume_command(folder.path, config, settings)}" if last else ""
            print_once(f"interrupted before step {trainer.state.global_step} was saved; {kept}{resume_with}")
            raise
    results: dict[str, Any] = {}
    if main:
        results = recorder.results(first, checkpoint, seconds, watch, failure)
        failure = _after_saving(lambda: recorder.write(results, first), failure)
        if interruption.happened or (failure and folder.last_checkpoint()):
            print(f"Resume with: {_resume_command(folder.path, config, settings)}", flush=True)
        uploads.finish(complete=failure is None and not interruption.happened and not watch.stopped_by)
    if failure:
        if together:
            # Wait for the other processes, because a launcher ends all processes as soon as one fails.
            on_main(on_all, lambda: None)
        raise failure
    return results


@contextmanager
def _owned_folder(trainer: GRPOTrainer, resume: str | Path | None) -> Iterator[None]:
    """Create and lock the output folder. Raise `OutputFolderError` if it contains a run that `resume` does not
    continue."""
    path = trainer.output_dir
    # The checkpoint may be a link, and `_checkpoint` reports a path that is not a checkpoint.
    given = Path(resume or "")
    own = path.resolve() in (given.resolve(), given.parent.resolve())
    continues = resume is not None and (str(resume) == AUTO or own)

    def enter() -> None:
        stack.enter_context(removed_on_error(path))
        path.mkdir(parents=True, exist_ok=True)
        # A requeued job may start while its predecessor is still saving.
        stack.enter_context(locked(path, wait_s=_REQUEUED_S if continues else 0))
        if not continues and ((run := RunFolder(path)).files() or run.checkpoints()):
            raise not_empty(path, resume="--resume auto, or train(..., resume='auto')")

    with ExitStack() as stack:
        on_main(trainer.accelerator, enter)
        yield


def _monitor(trainer: GRPOTrainer, config: MonitorsConfig | None, say: Callable[[str], Any]) -> MonitorCallback:
    """Return the trainer's own monitors, unless `config` is given or the trainer has none."""
    own = [callback for callback in trainer.callbacks if isinstance(callback, MonitorCallback)]
    watch = own[0] if own and config is None else MonitorCallback(config)
    watch.say = say
    return watch


@contextmanager
def _attached(trainer: GRPOTrainer, *callbacks: TrainerCallback) -> Iterator[None]:
    """Add `callbacks` to the trainer's own while this context is active. Monitors run before the recorder and the
    trackers because alarms are part of a step's metrics."""
    own = trainer.callbacks
    trainer.callbacks = [*(each for each in own if not isinstance(each, MonitorCallback)), *callbacks]
    try:
        yield
    finally:
        trainer.callbacks = own


def _outcome(act: Callable[[], Any], interruption: "_Interruption") -> tuple[Exception | None, bool]:
    """Call `act`, and return the error that it raised and whether all processes ended in the same way. An interrupt is
    recorded in `interruption` instead."""
    try:
        act()
    except (Exception, KeyboardInterrupt) as error:
        together = interruption.trainer.accelerator.num_processes == 1 or isinstance(error, StoppedTogether)
        if not (isinstance(error, KeyboardInterrupt) or from_interrupt(error)):
            return error, together
        interruption.happened = True
        return None, together
    return None, True


def _after_saving(save: Callable[[], Any], failure: Exception | None) -> Exception | None:
    """Call `save`, and return the error that ends the run: `failure`, or any error from `save` if there is no
    `failure`. If both errors occur, the error from `save` is added to `failure` as a note."""
    try:
        save()
    except Exception as error:
        if failure is None:
            return error
        failure.add_note(f"in addition, not everything could be saved: {type(error).__name__}: {error}")
    return failure


def _resume_command(folder: Path, config: TrainConfig | None, settings: dict[str, Any]) -> str:
    """Return the command that resumes a run started from a config, or from a script whose options (`settings`) include
    `--resume` and `--output-dir`. For other runs, return the Python call."""
    if config is not None:
        command = [entered("rg-env"), "train", str(folder / "config.yaml"), f"output.dir={folder}"]
    elif settings.keys() >= {"resume", "output_dir"}:
        # If an option is repeated, its last value takes effect.
        command = [entered("python"), *sys.argv, "--output-dir", str(folder)]
    else:
        return f"train(trainer, resume={AUTO!r}), with output_dir={str(folder)!r}"
    launched = " (launched in the same way)" if world_size() > 1 else ""
    return shlex.join([*command, "--resume", AUTO]) + launched


def _checkpoint(trainer: GRPOTrainer, resume: str | Path) -> Path | None:
    """Return the validated checkpoint to resume from, or None if "auto" does not find a checkpoint."""
    folder = trainer.output_dir
    checkpoint = chosen(resume, folder)
    if checkpoint is None:
        print(f"no checkpoint in {folder}: starting from the beginning", flush=True)
        if folder.is_dir():
            RunFolder(folder).cut_after(-1)
        return None
    check_fit(trainer, checkpoint)
    step, last = saved_step(checkpoint) or 0, trainer.args.max_steps
    if step > last or (step == last and resume != AUTO and final_results(RunFolder(checkpoint.parent), step)):
        raise InputError(
            f"cannot resume from {checkpoint}: it is already at step {step} of {last}; increase max_steps to continue"
        )
    return checkpoint


def _describe(
    folder: RunFolder, evaluation: FixedEvaluation, config: TrainConfig | None, settings: dict[str, Any], first: int
) -> None:
    """Write the run's configuration and, unless the folder already contains this run, the manifest."""
    resumes_here = first > 0 and folder.config_file.exists()
    resolved = _resolved(evaluation, settings if config is None else {})
    resolved["eval_config"] = _eval_config(evaluation, config)
    data = config.data if config else None
    path = os.path.abspath(Path(data.path).expanduser()) if data and data.is_file else None
    resolved["own_files"] = sealed({"imports": sources(), "data": path})
    if config is None:
        folder.write_config(resolved)
    else:
        folder.write_config(config.resolved(), resolved)
    if not resumes_here:
        trainer = evaluation.trainer
        machine = hardware(trainer.accelerator.num_processes)
        others = evaluation.plan.manifests(trainer.env)
        folder.write_manifest(trainer.env.manifest, others, machine, own_rows(trainer.env))


def _model_name(trainer: GRPOTrainer) -> str:
    return TINY if trainer.model_name == str(POLICY_DIR) else trainer.model_name


def _resolved(evaluation: FixedEvaluation, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of `config.yaml`: the caller's settings and the resolved values."""
    trainer, plan = evaluation.trainer, evaluation.plan
    env = trainer.env
    environment: dict[str, Any] = {
        **_prompt(env),
        "first_prompt": (env.train_rows or env.eval_rows)[0]["prompt"],
        "rewards": env.reward_weights,
    }
    if env.mixture is None:
        environment["own_rows"] = len(env.train_rows)
    else:
        environment |= {"gym": env.mixture.model_dump()["tasks"], "grading": env.prompt_options.grading}
    return {
        "script": shlex.join(sys.argv),
        **settings,
        "model": _model_name(trainer),
        "environment": environment,
        "training": trainer.args.model_dump(mode="json"),
        "engine": trainer.engine_config.model_dump(mode="json"),
        "fixed_evaluation": {
            **{name: getattr(plan, name) for name in ("every", "before", "after")},
            "sampling": evaluation.sampling(),
            "questions": evaluation.questions,
        },
        **({"curriculum": trainer.curriculum.config.model_dump()} if trainer.curriculum else {}),
    }


def _prompt(env: Environment) -> dict[str, Any]:
    """Return the environment's prompt options as the `prompt` section of a config."""
    options = env.prompt_options
    return {
        "system_prompt": env.system_prompt or "",
        "placement": options.prompt_placement,
        "preamble": options.preamble or "",
        "few_shot": options.num_examples or list(map(dict, options.shots)),
        "chat_template_kwargs": dict(options.chat_template_kwargs or {}),
    }


def _eval_config(evaluation: FixedEvaluation, config: TrainConfig | None) -> dict[str, Any]:
    """Return the values of an evaluation config (`evaluation.config.EvalConfig`) that repeats the run's evaluation. In
    addition to the evaluated tasks, `tasks` contains the training tasks without evaluation questions, without
    `num_examples`."""
    env, sampling = evaluation.trainer.env, evaluation.sampling()
    values: dict[str, Any] = {
        "prompt": _prompt(env),
        "sampling": {key: sampling[key] for key in SamplingConfig.model_fields},
        "seed": evaluation.trainer.args.seed,
        **{key: sampling[key] for key in ("rollouts_per_example", "greedy")},
        "tasks": {},
    }
    if env.manifest is not None:
        splits = {"eval_seed": env.manifest["splits"]["eval"]["seed"], "split_by": env.manifest["split_by"]}
        values |= {"grading": env.prompt_options.grading, **splits}
    others = [(each.label, each.env) for each in evaluation.plan.questions(env) if each.env is not env]
    for label, each in [(None, env), *others]:
        if (mixture := each.mixture) is None:
            continue
        for task, count in zip(mixture.tasks, mixture.counts(len(each.eval_rows)), strict=True):
            options = task.model_dump(include={"config", "level", "levels"})
            values["tasks"][label or task.name] = {"task": task.name, "num_examples": count or None, **options}
    if config is not None:
        values["rewards"] = {name: reward.model_dump(exclude_none=True) for name, reward in config.rewards.items()}
        if config.data is not None and (count := config.splits.num_eval_examples):
            values |= {
                "data": config.data.model_dump(exclude_none=True),
                "eval_seed": config.splits.eval_seed,
                "num_examples": count,
            }
    return values


class _Interruption(TrainerCallback):
    """Ends a run on SIGINT or SIGTERM. A first signal in the middle of an update takes effect after the step.

    A second signal ends the run at once. If the second signal arrives in the middle of an update, nothing is saved.
    With several processes, the first signal ends all of them together after the current step, because processes that
    stopped at different points would wait for one another forever.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self.happened = False
        self._several = trainer.accelerator.num_processes > 1
        self._waiting = False
        self._first: tuple[int, float] | None = None
        """First signal and the time of its arrival."""

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Let this object handle SIGINT and SIGTERM while this context is active."""
        # Python delivers signals only to the main thread.
        here = threading.current_thread() is threading.main_thread()
        kinds = [signal.SIGINT, signal.SIGTERM] if here else []
        before = {kind: signal.signal(kind, self._interrupt) for kind in kinds}
        try:
            yield
            if self._first is not None:  # further signals from the same request must not interrupt saving
                time.sleep(max(0.0, self._first[1] + TOGETHER_S - time.monotonic()))
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _interrupt(self, kind: int, frame: Any) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = kind, now
        elif kind != self._first[0] and now < self._first[1] + TOGETHER_S:
            return
        if self._waiting or not (self.trainer.updating or self._several):
            raise KeyboardInterrupt  # ends the run at once, as a second signal always does
        self._waiting = True
        if not self._several:  # training ends once the step's metrics are written
            self.happened = self.trainer.control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._several:
            accelerator = self.trainer.accelerator
            waiting = torch.tensor(float(self._waiting), device=accelerator.device)
            if accelerator.reduce(waiting, reduction="sum").item() > 0:
                self.happened = control.should_training_stop = True
