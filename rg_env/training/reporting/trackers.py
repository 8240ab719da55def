"""Experiment trackers for a run (`LoggingConfig.report_to`): TensorBoard, Weights & Biases and Trackio.

This module adds the following to accelerate's trackers:

- If a tracker cannot be started, the run ends with a one-line error within a minute, before training starts. If a
  tracker fails later, it is dropped with a one-line warning on standard error. metrics.jsonl still has all metrics.
- Questions and completions shown on the console are sent to W&B and Trackio as tables, unless `completion_tables`
  is False.
- Training metrics are logged under `train/`, and evaluation metrics keep their names (`eval/accuracy`).
- W&B's environment variables take precedence over the config because they are the usual way to configure W&B.
- If the caller has opened a W&B run, that run is used and left open.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker
from transformers import TrainerCallback

from rg_env.core.files import check_no_link, make_folder
from rg_env.core.text import reason_of
from rg_env.errors import InputError, OutputFolderError
from rg_env.training.collectives import on_main
from rg_env.training.config.schema import LoggingConfig
from rg_env.training.preflight import check_logins

STEP = "train/global_step"
"""Metric on the x-axis of plots in W&B and Trackio."""
_COLUMNS = ("task", "question", "completion", "answer", "reward", "correct", "status")
"""Columns of a completion table after the step column."""
FOLDERS = ("tensorboard", "wandb")
"""Subfolders of the run's folder that trackers may write to."""
_WANDB = {
    "WANDB_CONSOLE": "off",  # otherwise, W&B would upload all console output, including progress and model output
    "WANDB_INIT_TIMEOUT": "60",  # seconds to wait for the server when a run starts
    "WANDB_FINISH_TIMEOUT": "300",  # seconds allowed for uploads after the run; `wandb sync` can upload the rest
}


class Trackers(TrainerCallback):
    """Callback that sends metrics to experiment trackers. Call `start` before training and `finish` after it.

    Args:
        folder: the run's folder.
    """

    def __init__(self, trainer: Any, config: LoggingConfig, folder: Path) -> None:
        self._trainer, self._config, self._folder = trainer, config, folder
        self.new_folders = [folder / name for name in FOLDERS if not (folder / name).exists()]
        """Folders of trackers that did not exist before the run."""
        self._running: dict[str, GeneralTracker] = {}
        self._callers_run: Any = None

    def start(self) -> None:
        """Start the trackers. This is a collective operation.

        Raises:
            InputError: a tracker cannot be started. With several processes, `StoppedTogether` is raised instead.
        """
        for name in self._config.report_to:
            on_main(self._trainer.accelerator, lambda name=name: self._start(name))  # type: ignore[misc]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        logs = logs or {}
        named = {name if name.startswith("eval/") else f"train/{name}": value for name, value in logs.items()}
        for name in list(self._running):
            self._send(name, lambda: named, state.global_step)

    def completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Send rollouts to W&B and Trackio as a table. Call this method only on the main process."""
        rows = [[step, *(record.get(column) for column in _COLUMNS)] for record in records]
        for name in [name for name in self._running if name != "tensorboard" and self._config.completion_tables]:
            self._send(name, partial(_table, name, rows), step)

    def _send(self, name: str, values: Callable[[], dict[str, Any]], step: int) -> None:
        """Log values to a tracker, and drop the tracker if it fails."""
        try:
            if name == "tensorboard":
                self._running[name].log(values(), step=step)
            else:  # with the argument `step`, W&B would drop values at steps below the caller's last step
                self._running[name].log({**values(), STEP: step})
        except Exception as error:
            del self._running[name]
            _warn(
                f"{name} failed at step {step} ({reason_of(error)}); the run continues without this tracker, and "
                "metrics.jsonl has all metrics"
            )

    def finish(self, *, failed: bool) -> None:
        """Close the trackers. A failure is reported on standard error and not raised."""
        for name, tracker in self._running.items():
            try:
                if name != "wandb":
                    tracker.finish()
                elif self._callers_run is None:
                    tracker.tracker.finish(exit_code=int(failed))
            except Exception as error:
                _warn(f"{name} could not be closed: {reason_of(error)}")
        self._running.clear()

    def _start(self, name: str) -> None:
        config, arguments = self._config, self._trainer.args.model_dump(mode="json", exclude_none=True)
        try:
            tracker = self._tracker(name, config.run_name or self._folder.name)
            tracker.start()
            if name == "tensorboard":  # `store_init_configuration` would write the arguments to a separate folder
                tracker.tracker.add_text("args", json.dumps(arguments, indent=2))
            else:
                tracker.store_init_configuration(arguments)
            if name == "wandb":
                tracker.tracker.define_metric(STEP)
                tracker.tracker.define_metric("*", step_metric=STEP, step_sync=True)
        except Exception as error:
            if isinstance(error, InputError) and not isinstance(error, OutputFolderError):
                raise
            raise InputError(
                f"cannot report to {name}: {reason_of(error)} (fix this, or remove {name} from report_to)"
            ) from error
        self._running[name] = tracker

    def _tracker(self, name: str, run_name: str) -> GeneralTracker:
        if name == "tensorboard":
            make_folder(self._folder / name)
            return TensorBoardTracker("", self._folder / name)
        if name == "trackio":
            return TrackioTracker(self._config.project, name=run_name)
        import wandb

        self._callers_run = wandb.run
        if wandb.run is not None:
            tracker = WandBTracker(self._config.project)
            tracker.start = lambda: setattr(tracker, "run", self._callers_run)
            return tracker
        for variable, value in _WANDB.items():
            os.environ.setdefault(variable, value)
        check_logins(self._config)
        check_no_link(self._folder / name)
        return WandBTracker(
            os.environ.get("WANDB_PROJECT", self._config.project),
            name=os.environ.get("WANDB_NAME", run_name),
            dir=os.environ.get("WANDB_DIR", str(self._folder)),
        )


def _table(name: str, rows: list[list[Any]]) -> dict[str, Any]:
    columns = ["step", *_COLUMNS]
    if name == "wandb":
        import wandb

        return {"completions": wandb.Table(columns=columns, data=rows)}
    import trackio
    from pandas import DataFrame  # type: ignore[import-untyped]

    return {"completions": trackio.Table(dataframe=DataFrame(rows, columns=columns))}


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
