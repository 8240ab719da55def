"""Upload a run to the Hugging Face Hub (`hub:` in the run's config), during and after training.

Each upload runs `rg-env push` in a child process, so training never waits for the network. If an upload fails, the run
continues, and a one-line message with the command that completes the upload is printed. During training, a copy of
the run is uploaded (with hard links to all files that do not grow) because checkpoints may be deleted and metrics
appended in the meantime.
"""

import atexit
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rg_env.core.hub import PushRequest
from rg_env.core.processes import Command, ProcessGroup, environment_without
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.training.config.schema import HubConfig
from rg_env.training.preflight import check_hub

FINISH_TIMEOUT_S = 3600.0
"""Timeout for an upload after training, in seconds."""
_GRACE_S = 10.0
"""Time, in seconds, that a terminated upload has to remove its exported files before it is killed."""
_WORKSPACE = ".hub-upload"
"""Subfolder of the run's folder that contains the output of the current upload and, during training, a copy of the
run."""


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
        self._active = main and config.enabled
        self._workspace = folder / _WORKSPACE
        self._due: int | None = None
        self._process: ProcessGroup | None = None
        self._path = folder
        """The run or checkpoint being uploaded."""
        if self._active:
            shutil.rmtree(self._workspace, ignore_errors=True)  # left by a run that was killed
            atexit.register(self.stop)

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
        try:
            self._start(self._run.checkpoint(step), copied=True)
        except OSError as error:
            self._fail(str(error.strerror or error))

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
        except OSError as error:
            self._fail(str(error.strerror or error))
        except KeyboardInterrupt:
            self._fail("interrupted")
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """End a running upload and remove its copy of the run."""
        if self._process is not None:
            self._process.end(lambda: _GRACE_S)
            self._process = None
        shutil.rmtree(self._workspace, ignore_errors=True)

    def _request(self, path: Path) -> PushRequest:
        assert self._config.repo_id is not None
        return PushRequest(path, self._config.repo_id, self._config.private, self._config.optimizer_state)

    def _start(self, path: Path, *, copied: bool = False) -> None:
        self._path = path
        self._workspace.mkdir()
        if copied:
            _link_run(self._run, path, self._workspace)
        arguments = self._request(self._workspace / path.name if copied else path).arguments
        environment = environment_without(gpus=False)
        environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        command = Command((sys.executable, "-m", "rg_env.cli.main", *arguments))
        self._process = ProcessGroup(command, self._workspace / "upload.log", environment=environment)

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
        command = self._request(self._run.path).command
        self._say(f"hub: {self._path.name} was not uploaded ({reason}); upload the run with: {command}")


def _link_run(run: RunFolder, checkpoint: Path, copy: Path) -> None:
    """Copy the run's current state, with one checkpoint, to `copy`. Growing files are copied, and all other files are
    hard-linked."""
    shutil.copytree(checkpoint, copy / checkpoint.name, copy_function=_link)
    for file in run.files():
        target = copy / file.relative_to(run.path)
        target.parent.mkdir(exist_ok=True)
        (shutil.copyfile if file.suffix == ".jsonl" else _link)(str(file), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system does not support hard links
        shutil.copyfile(source, target)
