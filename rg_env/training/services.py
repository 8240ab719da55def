"""Services that a run reports to (`LoggingConfig.report_to`): TensorBoard, Weights & Biases, Trackio.

    GRPOConfig(**service_settings(config.logging, folder), ...)

transformers' callbacks do the work. What is different here, where `train` is used:

- A service that cannot be started is one line of error before training, within a minute. One that fails later is
  left behind with a line on standard error; metrics.jsonl has everything.
- Metrics of evaluations keep their names (`eval/accuracy`); the originals file them under `train/eval/accuracy`.
- What is logged when training ends (the last evaluation) arrives: the originals close first, or open a second file.
- The originals' Trackio waits for all processes whenever something is logged; only the first one logs here.
"""

import copy
import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback, WandbCallback
from transformers.integrations.integration_utils import TrackioCallback, rewrite_logs

from rg_env.errors import InputError
from rg_env.training.arguments import GRPOConfig
from rg_env.training.collective import on_main
from rg_env.training.config_sections import LoggingConfig
from rg_env.training.doctor.accounts import wandb_login

START_TIMEOUT = 60
"""Seconds that wandb's server has to answer when a run starts."""
FINISH_TIMEOUT = 300
"""Seconds that wandb may still upload when a run has ended; `wandb sync` uploads the rest."""


def service_settings(logging: LoggingConfig, folder: Path) -> dict[str, Any]:
    """Fields of `GRPOConfig` for a run in `folder`. Also sets the variables that wandb reads.

    Variables that are in the environment already stay, and win: they are how these services are configured.
    """
    settings = {
        "report_to": list(logging.report_to),
        "run_name": logging.run_name or folder.name,
        "logging_dir": str(folder / "tensorboard"),
        "project": logging.project,
        "trackio_space_id": None,  # transformers' default uploads to a Space
        "log_completions": False,  # verifiers would print whole batches; the console shows examples
    }
    if "wandb" in logging.report_to:
        for name, value in (
            ("WANDB_PROJECT", logging.project),
            ("WANDB_DIR", str(folder)),
            ("WANDB_CONSOLE", "off"),  # else all that is printed, progress and model text included, is uploaded
            ("WANDB_INIT_TIMEOUT", str(START_TIMEOUT)),
            ("WANDB_FINISH_TIMEOUT", str(FINISH_TIMEOUT)),
        ):
            if os.environ.get(name) in (None, _set_here.get(name)):  # not the user's; an earlier run's is stale
                os.environ[name] = _set_here[name] = value
    known = {field.name for field in dataclasses.fields(GRPOConfig)}  # transformers 4.56 lacks two
    return {name: value for name, value in settings.items() if name in known}


_set_here: dict[str, str] = {}


class _Service:
    """Around one of transformers' callbacks: started and stopped by `start` and `stop`, and never the end of a run."""

    name: str
    failed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Started already."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Not yet: the last evaluation is still to come."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.failed or not state.is_world_process_zero:
            return
        # What begins with "eval_" is filed under "eval/".
        named = {re.sub("^eval/", "eval_", name): value for name, value in (logs or {}).items()}
        if args.rollouts_as_steps:
            state = copy.copy(state)
            state.global_step = (logs or {}).get("rollouts", state.global_step)
        try:
            self.report(args, state, control, named, **kwargs)
        except Exception as error:
            self.failed = True
            print(
                f"{self.name} failed at step {state.global_step} ({_first_line(error)}): the run goes on without it; "
                f"metrics.jsonl has everything",
                file=sys.stderr,
                flush=True,
            )

    def report(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        super().on_log(args, state, control, logs=logs, **kwargs)  # type: ignore[misc]

    def begin(self, trainer: Any) -> None:
        super().on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)  # type: ignore[misc]

    def end(self, trainer: Any, *, failed: bool) -> None:
        super().on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)  # type: ignore[misc]


class _TensorBoard(_Service, TensorBoardCallback):
    name = "tensorboard"


class _Wandb(_Service, WandbCallback):
    name = "wandb"
    _ours = False

    def begin(self, trainer: Any) -> None:
        import wandb

        self._ours = wandb.run is None
        if self._ours and not _wandb_can_start(wandb):
            raise InputError("there is no login: WANDB_API_KEY in .env, or `wandb login`; or WANDB_MODE=offline")
        if self._ours:  # wandb reads the environment but once in a process
            wandb.init(
                project=os.environ.get("WANDB_PROJECT"),
                name=os.environ.get("WANDB_NAME", trainer.args.run_name),
                dir=os.environ.get("WANDB_DIR", trainer.args.output_dir),
            )
        self._initialized = False  # also where the same trainer has trained before
        super().begin(trainer)

    def end(self, trainer: Any, *, failed: bool) -> None:
        super().end(trainer, failed=failed)
        if self._ours and self._wandb.run is not None:
            self._wandb.finish(exit_code=int(failed))


class _Trackio(_Service, TrackioCallback):
    name = "trackio"

    def report(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        self._trackio.log({**rewrite_logs(logs), "train/global_step": state.global_step})


_SERVICES: dict[type, Callable[[], _Service]] = {
    TensorBoardCallback: _TensorBoard,
    WandbCallback: _Wandb,
    TrackioCallback: _Trackio,
}


def start(trainer: Any) -> None:
    """Start the services in `trainer.args.report_to`. All processes take part.

    Raises:
        InputError: one cannot be started; `StoppedTogether` where several processes train.
    """
    callbacks = trainer.callback_handler.callbacks
    for number, original in enumerate(callbacks):
        if type(original) in _SERVICES:
            callbacks[number] = service = _SERVICES[type(original)]()
            vars(service).update(vars(original))  # such as a writer of the caller's
    for each in _running(trainer):
        each.failed = False
        on_main(trainer.accelerator, lambda each=each: _begin(each, trainer))  # type: ignore[misc]


def stop(trainer: Any, *, failed: bool) -> None:
    """Close the services. What goes wrong then is told on standard error, and is no error."""
    if not trainer.accelerator.is_main_process:
        return
    for each in _running(trainer):
        try:
            each.end(trainer, failed=failed)
        except Exception as error:
            print(f"{each.name} was not closed: {_first_line(error)}", file=sys.stderr, flush=True)


def folders(trainer: Any) -> list[Path]:
    """Where services may write within the run's folder."""
    run = Path(trainer.args.output_dir)
    return [path for path in (Path(trainer.args.logging_dir), run / "wandb") if path.is_relative_to(run)]


def _running(trainer: Any) -> list[_Service]:
    return [each for each in trainer.callback_handler.callbacks if isinstance(each, _Service)]


def _begin(service: _Service, trainer: Any) -> None:
    try:
        service.begin(trainer)
    except Exception as error:
        raise InputError(
            f"cannot report to {service.name}: {_first_line(error)} (or leave it out of report_to)"
        ) from error


def _wandb_can_start(wandb: Any) -> bool:
    """Whether wandb would start without asking anybody."""
    if wandb.setup().settings.mode in ("offline", "dryrun", "disabled"):
        return True
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # older releases always ask
        return wandb_login()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
