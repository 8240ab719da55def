"""Services that a run reports to (`LoggingConfig.report_to`): TensorBoard, Weights & Biases, Trackio.

accelerate's trackers do the work. What they lack is here:

- A service that cannot be started is one line of error before training, within a minute. One that fails later is
  abandoned with a line on standard error; metrics.jsonl has everything.
- Metrics of training are filed under `train/`, those of evaluations keep their names (`eval/accuracy`).
- Environment variables that are set already win: they are how these services are configured.
- A run of wandb that the caller has opened is used and left open.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker
from transformers import TrainerCallback

from rg_env.core.text import reason_of
from rg_env.errors import InputError
from rg_env.training.config.schema import LoggingConfig
from rg_env.training.distributed import on_main
from rg_env.training.reporting.logins import wandb_login

START_TIMEOUT = 60
"""Seconds that wandb's server has to answer when a run starts."""
FINISH_TIMEOUT = 300
"""Seconds that wandb may still upload when a run has ended; `wandb sync` uploads the rest."""
STEP = "train/global_step"
"""What wandb and Trackio plot over."""
FOLDERS = ("tensorboard", "wandb")
"""Where services may write in the run's folder."""


class Trackers(TrainerCallback):
    """A trainer's callback; `start` it before training and `finish` it afterwards.

    Args:
        folder: of the run.
    """

    def __init__(self, trainer: Any, config: LoggingConfig, folder: Path) -> None:
        self._trainer, self._config, self._folder = trainer, config, folder
        self._running: dict[str, GeneralTracker] = {}
        self._leave_open: set[str] = set()

    def start(self) -> None:
        """Start the services. All processes take part.

        Raises:
            InputError: one cannot be started; `StoppedTogether` if several processes train.
        """
        for name in self._config.report_to:
            on_main(self._trainer.accelerator, lambda name=name: self._start(name))  # type: ignore[misc]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        found = logs or {}
        step = int(found.get("rollouts", 0)) if args.rollouts_as_steps else state.global_step
        named = {name if name.startswith("eval/") else f"train/{name}": value for name, value in found.items()}
        for name, tracker in list(self._running.items()):
            try:
                if name == "tensorboard":
                    tracker.log(named, step=step)
                else:  # by a step of its own, wandb would drop what comes after the steps of a caller's run
                    tracker.log({**named, STEP: step})
            except Exception as error:
                del self._running[name]
                _warn(
                    f"{name} failed at step {step} ({reason_of(error)}): the run continues without it; metrics.jsonl "
                    "has everything"
                )

    def finish(self, *, failed: bool) -> None:
        """Close the services. What goes wrong then is a line on standard error."""
        for name, tracker in self._running.items():
            try:
                if name == "wandb" and name not in self._leave_open:
                    tracker.tracker.finish(exit_code=int(failed))
                elif name not in self._leave_open:
                    tracker.finish()
            except Exception as error:
                _warn(f"{name} was not closed: {reason_of(error)}")
        self._running.clear()

    def _start(self, name: str) -> None:
        try:
            tracker = _STARTERS[name](self)
            if hasattr(tracker, "start"):  # accelerate before 1.6 starts in the constructor
                tracker.start()
            arguments = self._trainer.args.model_dump(mode="json", exclude_none=True)
            if name == "tensorboard":  # its tracker would write them to a folder of their own
                tracker.tracker.add_text("args", json.dumps(arguments, indent=2))
            else:
                tracker.store_init_configuration(arguments)
            if name == "wandb":
                tracker.tracker.define_metric(STEP)
                tracker.tracker.define_metric("*", step_metric=STEP, step_sync=True)
            self._running[name] = tracker
        except Exception as error:
            reason = reason_of(error)
            raise InputError(f"cannot report to {name}: {reason} (or leave it out of report_to)") from error

    @property
    def _run_name(self) -> str:
        return self._config.run_name or self._folder.name

    def _tensorboard(self) -> GeneralTracker:
        return TensorBoardTracker("", self._folder / "tensorboard")

    def _wandb(self) -> GeneralTracker:
        import wandb

        if wandb.run is not None:
            self._leave_open.add("wandb")
            tracker = WandBTracker(self._config.project)
            tracker.start = lambda: setattr(tracker, "run", wandb.run)
            return tracker
        for variable, value in (
            ("WANDB_CONSOLE", "off"),  # else all that is printed, progress and model text included, is uploaded
            ("WANDB_INIT_TIMEOUT", str(START_TIMEOUT)),
            ("WANDB_FINISH_TIMEOUT", str(FINISH_TIMEOUT)),
        ):
            os.environ.setdefault(variable, value)
        if not _wandb_can_start(wandb):
            raise InputError("not logged in: set WANDB_API_KEY in .env, run `wandb login`, or set WANDB_MODE=offline")
        return WandBTracker(
            os.environ.get("WANDB_PROJECT", self._config.project),
            name=os.environ.get("WANDB_NAME", self._run_name),
            dir=os.environ.get("WANDB_DIR", str(self._folder)),
        )

    def _trackio(self) -> GeneralTracker:
        return TrackioTracker(self._config.project, name=self._run_name)


_STARTERS: dict[str, Callable[[Trackers], GeneralTracker]] = {
    "tensorboard": Trackers._tensorboard,
    "wandb": Trackers._wandb,
    "trackio": Trackers._trackio,
}


def _wandb_can_start(wandb: Any) -> bool:
    """Whether wandb would start without asking anybody."""
    if wandb.setup().settings.mode in ("offline", "dryrun", "disabled"):
        return True
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # older releases always ask
        return wandb_login()


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
