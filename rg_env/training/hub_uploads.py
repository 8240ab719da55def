"""Upload a run to the Hugging Face Hub (`hub:` in the run's config), during and after training.

Each upload runs `rg-env push` in a child process, so training never waits for the network. If an upload fails, the run
continues, and a one-line message with the command that completes the upload is printed. A checkpoint is not deleted
while it is uploaded (see `Uploads.is_uploading`).
"""

import atexit
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rg_env.core.hub import push_arguments
from rg_env.core.processes import Command, ProcessGroup, entered, environment_without
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.training.config.schema import HubConfig
from rg_env.training.preflight import check_hub

FINISH_TIMEOUT_S = 3600.0
"""Timeout for an upload after training, in seconds."""
_GRACE_S = 10.0
"""Time, in seconds, that a terminated upload has to remove its exported files before it is killed."""
_LOG = ".hub-upload.log"
"""File in the run's folder with the output of the current upload."""


class Uploads(TrainerCallback):
    """Callback that uploads a run. Add it after the recorder, and call `finish` once all of the run's files have been
    written.

    Args:
        folder: the run's folder.
        main: whether this is the main process. Other processes do nothing.
        say: called with each line to print.
    """

    def __init__(self, config: HubConfig, folder: Path, *, main: bool, say: Callable[[str], None]):
        check_hub(config)
        self._config, self._run, self._say = config, RunFolder(folder), say
        self._active, self._log = main and config.enabled, folder / _LOG
        self._due: int | None = None
        self._process: ProcessGroup | None = None
        self._path = folder
        """The run or checkpoint being uploaded."""
        if self._active:
            atexit.register(self.stop)

    def is_uploading(self, path: Path) -> bool:
        """Whether the checkpoint at `path` is being uploaded."""
        return self._process is not None and path == self._path

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every = self._config.every
        if self._active and every and state.global_step % every == 0 and state.global_step < state.max_steps:
            self._due = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start an upload if one is due. The upload starts here and not in `on_save`, because the step is evaluated
        after `on_save`."""
        if self._process and self._process.code is not None:
            self._report()
        if self._due is None:
            return
        step, self._due = self._due, None
        if self._process:
            self._say(f"hub: step {step} was not uploaded because an earlier upload is still running")
            return
        self._start(self._run.checkpoint(step))

    def finish(self, *, complete: bool) -> None:
        """Upload the entire run if training finished (`complete`), after waiting for the running upload, if any.
        Otherwise, end the running upload and print the command that uploads the run.

        Raises `KeyboardInterrupt` on Ctrl-C, after stopping the upload in progress.
        """
        if not self._active:
            return
        try:
            if complete:
                self._report()
                self._say(f"hub: uploading the run to {self._config.repo_id}; this can take a while")
                self._start(self._run.path)
                self._report()
            else:
                self._path = self._run.path
                self._fail("training did not finish")
        except KeyboardInterrupt:
            self._fail("interrupted")
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """End a running upload."""
        if self._process is not None:
            self._process.end(lambda: _GRACE_S)
            self._process = None
        self._log.unlink(missing_ok=True)

    def _arguments(self, path: Path) -> list[str]:
        config = self._config
        return push_arguments(path, str(config.repo_id), config.private, config.optimizer_state)

    def _start(self, path: Path) -> None:
        self._path = path
        environment = {**environment_without(gpus=False), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        command = Command((sys.executable, "-P", "-m", "rg_env.cli.main", *self._arguments(path)))
        try:
            self._process = ProcessGroup(command, self._log, environment=environment)
        except OSError as error:
            self._fail(str(error.strerror or error))

    def _report(self) -> None:
        """Wait for the running upload, if any, and report its outcome."""
        if self._process is None:
            return
        code = self._process.wait(FINISH_TIMEOUT_S)
        last = one_line("".join(self._process.last_lines(1)), 400)
        self.stop()
        if code == 0:
            self._say(f"hub: {self._path.name} uploaded to {last}")
        elif code is None:
            self._fail(f"the upload took more than {FINISH_TIMEOUT_S:g} s")
        else:
            self._fail(last.removeprefix("error: ").partition("; the same command ")[0] or f"exit code {code}")

    def _fail(self, reason: str) -> None:
        """Print the command that uploads the run. The command never uploads a single checkpoint, because a checkpoint
        from an earlier step would overwrite a run that was uploaded in the meantime."""
        command = shlex.join([entered("rg-env"), *self._arguments(self._run.path)])
        self._say(f"hub: {self._path.name} was not uploaded ({reason}); upload the run with: {command}")
