"""The uploads of a run (`hub:` in its config): on the way beside training, and the last one when it has ended.

Each is `rg-env push` in a process of its own, so that neither training nor other processes wait for a network, and
nothing that goes wrong there ends a run: it is told in one line, with the command that finishes it. On the way a copy
of the run is published, made of hard links: checkpoints may be deleted, and metrics written, meanwhile.
"""

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import IO, Any, Literal

from huggingface_hub import get_token
from transformers import TrainerCallback

from rg_env.core.hub_names import repo_problem
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.training.config.schema import HubConfig

FINISH_TIMEOUT = 3600.0
"""Seconds that an upload may take when training has ended."""
_GRACE = 10.0
"""Seconds for an upload to end, and to take away what it exported, before it is killed."""
_OF_LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "ACCELERATE_", "TORCHELASTIC_", "FSDP_")
_RECORDS = ("*.yaml", "*.json", "*.png", "*.jsonl", "eval_results/*.json")


LOGIN = "HF_TOKEN in .env, or `hf auth login` (a token that may write: huggingface.co/settings/tokens)"
OptimizerState = Literal["none", "full"]


@dataclass(frozen=True)
class PushRequest:
    """What is to be published, and where."""

    path: Path
    """A run (its last checkpoint), a checkpoint, or a model folder."""
    repo_id: str
    private: bool = False
    optimizer_state: OptimizerState = "none"
    """"full": with all that training goes on from."""
    revision: str | None = None
    """A branch; default: the main one."""

    @property
    def command_words(self) -> list[str]:
        """The command that does it."""
        words = ["rg-env", "push", str(self.path), "--repo-id", self.repo_id]
        words += ["--private"] if self.private else []
        words += ["--optimizer-state", "full"] if self.optimizer_state == "full" else []
        return words + (["--revision", self.revision] if self.revision else [])

    @property
    def command(self) -> str:
        """The same for a shell."""
        return join(self.command_words)


def check_hub(config: HubConfig) -> None:
    """Raise `InputError` where uploads are asked for that cannot be made: told before a model is loaded."""
    if not config.enabled:
        return
    if config.repo_id is None:
        raise InputError("hub.repo_id is missing: USER/NAME")
    if problem := repo_problem(config.repo_id):
        raise InputError(f"hub.repo_id {problem}")
    if not get_token():
        raise InputError(f"hub.enabled: there is no Hugging Face token: {LOGIN}; or hub.enabled=false")


@dataclass
class _Upload:
    """One that is under way."""

    asked: PushRequest
    """What a person would ask for to finish it."""
    process: subprocess.Popen
    output: IO[bytes]
    copy: Path | None


class Uploads(TrainerCallback):
    """A trainer's callback, to be added after the recorder; `finish` is called when the run has left all its files.

    Args:
        folder: of the run.
        say: takes a line for people.
    """

    def __init__(self, config: HubConfig, folder: Path, *, main: bool, say: Callable[[str], None]):
        check_hub(config)
        self._config, self._folder, self._say = config, folder, say
        self._active = main and config.enabled
        if self._active:
            _clear_stale(folder)
        self._due: int | None = None
        self._upload: _Upload | None = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every = self._config.every
        if self._active and every and state.global_step % every == 0 and state.global_step < state.max_steps:
            self._due = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Not in `on_save`: the evaluation of that step is made when the next one begins."""
        if self._upload and self._upload.process.poll() is not None:
            self._settle()
        if self._due is None:
            return
        step, self._due = self._due, None
        if self._upload:
            self._say(f"hub: step {step} is not uploaded, for an earlier upload is still under way")
            return
        try:
            self._start(RunFolder(self._folder).checkpoint(step), beside_training=True)
        except OSError as error:
            self._say(self._failed(self._asked(RunFolder(self._folder).checkpoint(step)), str(error.strerror or error)))

    def finish(self, *, complete: bool) -> None:
        """Wait for what is under way, and upload the run as it ended; `complete`: whether training came to its end.

        Raises `KeyboardInterrupt` on Ctrl-C, after it has ended what was under way.
        """
        if not self._active:
            return
        try:
            if not complete:
                self.stop()
                command = self._asked(self._folder).command
                self._say(f"hub: not uploaded, as training did not come to its end; this does it: {command}")
                return
            self._settle(at_end=True)
            self._say(f"hub: uploading the run to {self._config.repo_id}, which can take a while")
            self._start(self._folder, beside_training=False)
            self._settle()
        except OSError as error:
            self._say(self._failed(self._asked(self._folder), str(error.strerror or error)))
        except KeyboardInterrupt:
            self._say(self._failed(self._asked(self._folder), "interrupted"))
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """End what is under way, and take its copy away."""
        if self._upload is not None:
            _end(self._upload.process)
            self._clear()

    def _asked(self, path: Path) -> PushRequest:
        config = self._config
        assert config.repo_id is not None
        return PushRequest(path, config.repo_id, config.private, config.optimizer_state)

    def _start(self, path: Path, *, beside_training: bool) -> None:
        asked, copy = self._asked(path), None
        named = asked
        if beside_training:
            copy = Path(tempfile.mkdtemp(prefix=f".{self._folder.name}-hub-", dir=self._folder.absolute().parent))
            named = self._asked(copy / path.name)
        output, lock = tempfile.TemporaryFile(), None  # noqa: SIM115
        try:
            lock = _locked(copy)
            if copy is not None:
                _link_run(self._folder, path, copy)
            program = [sys.executable, "-m", "rg_env.cli.main", *named.command_words[1:]]
            process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                pass_fds=[] if lock is None else [lock],
                start_new_session=True,  # Ctrl-C is for the trainer, which says what becomes of the upload
            )
        except BaseException:
            output.close()
            if copy is not None:
                shutil.rmtree(copy, ignore_errors=True)
            raise
        finally:
            if lock is not None:
                os.close(lock)  # the upload has it, too
        self._upload = _Upload(asked, process, output, copy)
        atexit.register(self.stop)

    def _settle(self, *, at_end: bool = False) -> None:
        """Wait for the upload under way, and say what became of it.

        `at_end`: that of the whole run follows; whoever finished this one later would put an earlier step in its place.
        """
        if (upload := self._upload) is None:
            return
        try:
            code: int | None = upload.process.wait(FINISH_TIMEOUT)
        except subprocess.TimeoutExpired:
            _end(upload.process)
            code = None
        upload.output.seek(0)
        lines = [line for line in upload.output.read().decode(errors="replace").split("\n") if line.strip()]
        self._clear()
        if code == 0 and lines:
            what = "" if upload.asked.path == self._folder else f"{upload.asked.path.name} "
            self._say(f"hub: {what}uploaded to {one_line(lines[-1])}")
        else:
            said = lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
            reason = one_line(said.partition("; no file of ")[0], 400)
            if code is None:
                reason = f"it took more than {FINISH_TIMEOUT:.0f} s"
            if at_end:
                self._say(f"hub: {upload.asked.path.name} not uploaded ({reason}); the whole run follows")
            else:
                self._say(self._failed(upload.asked, reason))

    def _failed(self, asked: PushRequest, reason: str) -> str:
        if asked.path != self._folder and not asked.path.exists():
            asked = self._asked(self._folder)
        return f"hub: not uploaded ({reason}); the run is not touched by that. This finishes it: {asked.command}"

    def _clear(self) -> None:
        assert self._upload is not None
        atexit.unregister(self.stop)
        self._upload.output.close()
        if self._upload.copy is not None:
            shutil.rmtree(self._upload.copy, ignore_errors=True)
        self._upload = None


def _locked(copy: Path | None) -> int | None:
    """A file descriptor with a lock on `copy`: it lasts as long as a process has it. None: there is nothing to lock,
    or the file system has no locks."""
    if copy is None:
        return None
    descriptor = os.open(copy, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _clear_stale(run: Path) -> None:
    """Take away the copies that a run which was killed left behind: they hold the room of checkpoints that are gone.
    Not one that an upload, which may outlive the run, is still at."""
    for copy in run.absolute().parent.glob(f".{glob.escape(run.name)}-hub-????????"):
        with contextlib.suppress(OSError):
            if (lock := _locked(copy)) is not None:
                shutil.rmtree(copy, ignore_errors=True)
                os.close(lock)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _link_run(run: Path, checkpoint: Path, copy: Path) -> None:
    """The run with one of its checkpoints, as it is now. What grows is copied; what is written once, linked."""
    shutil.copytree(checkpoint, copy / checkpoint.name, copy_function=_link)
    for pattern in _RECORDS:
        for file in run.glob(pattern):
            target = copy / file.relative_to(run)
            target.parent.mkdir(exist_ok=True)
            (shutil.copyfile if file.suffix == ".jsonl" else _link)(str(file), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _environment() -> dict[str, str]:
    """That of this process, without what makes it one of several, and without its GPUs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
