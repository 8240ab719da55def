"""A training run's folder. This module reads and writes the files in it, except checkpoints, the trackers' files and
the learning curve.

    run = RunFolder(Path("outputs/RUN"))
    run.config()["model"], run.metrics()[-1], run.last_checkpoint()

config.yaml           the resolved settings of the run's last start
arguments.yaml        for runs from a config: the resolved training arguments, prompt and rewards
manifest.json         versions, machine, and the training and evaluation rows
metrics.jsonl         one line per step, and one per evaluation
rollouts.jsonl        a sample of the training rollouts from each step
eval_results/         eval_step_N.json: scores and rollouts from each evaluation, step 0 first
tensorboard/, wandb/  files from these trackers, if enabled
checkpoint-N/         weights, tokenizer, optimizer state
train_results.json    results before and after training
reward_curve.png      the learning curve

Files other than .jsonl files and the trackers' files are first written under a temporary name and then renamed, so they
are never incomplete. A missing optional file is read as None or as empty. Reading a damaged file raises an `InputError`
that names the file. If a run was killed, the last line of a .jsonl file may be incomplete; readers ignore an incomplete
last line.

Commands that write to other folders (evaluations, sweeps) also use `free_folder` and `locked`.
"""

import atexit
import contextlib
import fcntl
import json
import math
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.files import (
    check_no_link,
    make_folder,
    opened_to_append,
    opened_to_read,
    read_bytes,
    remove_partial,
    write_aside,
)
from rg_env.core.processes import run
from rg_env.core.text import cut_bytes, is_number, one_line, reason_of
from rg_env.errors import InputError, OutputFolderError, RGEnvError, installed_version

OUTPUTS = Path("outputs")
_PACKAGES = ("rg-env", "verifiers", "reasoning-gym", "torch", "transformers", "trl", "accelerate", "deepspeed", "vllm")


class RunFolder:
    """A run's files."""

    def __init__(self, path: Path):
        self.path = path
        self.config_file = path / "config.yaml"
        self.arguments_file = path / "arguments.yaml"
        self.manifest_file = path / "manifest.json"
        self.metrics_file = path / "metrics.jsonl"
        self.rollouts_file = path / "rollouts.jsonl"
        self.results_file = path / "train_results.json"
        self.curve_file = path / "reward_curve.png"
        self.evaluations = path / "eval_results"

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether a training run, or an evaluation of a single checkpoint, has written to `path`."""
        run = RunFolder(path)
        return run.metrics_file.is_file() or run.results_file.is_file() or run.evaluations.is_dir()

    @staticmethod
    def choose(
        output_dir: str | Path | None,
        name: str,
        resume: str | Path | None = None,
        remedy: str = "choose another output folder",
        create: bool = False,
    ) -> Path:
        """Return the output folder of a run, checked but, unless `create` is set, not yet created.

        Args:
            output_dir: the folder, or None for a new one under `outputs/`.
            resume: the checkpoint to resume from, or "auto". With `resume`, `output_dir` may be the resumed run's
                folder, which is the default if a checkpoint is given. Any other folder must be new or empty.
            remedy: advice for the error message.

        Raises:
            OutputFolderError: the folder is not empty or not writable, or `resume` is "auto" without `output_dir`.
        """
        if resume is None:
            return free_folder(output_dir, name, remedy=remedy, create=create)
        own = None if str(resume) == "auto" else Path(resume).parent
        output_dir = own if output_dir is None else output_dir
        if output_dir is None:
            raise OutputFolderError("--resume auto needs the output folder of the run to resume")
        same = own is None or Path(output_dir).absolute() == own.absolute()
        return free_folder(output_dir, name, may_have_files=same, remedy=remedy)

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Create the folder. Raises `OutputFolderError` if the folder cannot be created, or if a subfolder is a
        link."""
        run = cls(Path(path))
        make_folder(run.evaluations)
        remove_partial(run.evaluations)
        return run

    def evaluation_file(self, step: int) -> Path:
        return self.evaluations / f"eval_step_{step}.json"

    def checkpoint(self, step: int) -> Path:
        return self.path / f"checkpoint-{step}"

    # Reading. Methods that open a file raise `InputError` if the file is damaged or unreadable.

    def config(self) -> dict[str, Any]:
        """Return the contents of config.yaml, which every run has."""
        return read_yaml(self.config_file)

    def arguments(self) -> dict[str, Any]:
        """Return the contents of arguments.yaml or, for a run without a config, config.yaml, which then has the same
        sections."""
        return read_yaml(self.arguments_file) if self.arguments_file.is_file() else self.config()

    def manifest(self) -> dict[str, Any]:
        """Return the contents of manifest.json, or an empty mapping if the file is missing."""
        return read_json(self.manifest_file) if self.manifest_file.is_file() else {}

    def results(self) -> dict[str, Any] | None:
        """Return the contents of train_results.json, or None if the run has not ended."""
        return read_json(self.results_file) if self.results_file.is_file() else None

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended, and has not been resumed since."""
        files = (self.metrics_file, self.results_file)
        logged, ended = (file.stat().st_mtime_ns if file.is_file() else -1 for file in files)
        return ended >= max(logged, 0)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, each with its step, or an empty list if the file is missing."""
        return list(_with_steps(self.metrics_file))

    def evaluation_steps(self) -> list[int]:
        """Return the steps that have an evaluation, in order. Raises `OutputFolderError` if their folder is a link."""
        check_no_link(self.evaluations)
        stems = [file.stem.removeprefix("eval_step_") for file in self.evaluations.glob("eval_step_*.json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint-N folders, newest first."""
        found = self.path.iterdir() if self.path.is_dir() else ()
        numbered = [(step, each) for each in found if (step := checkpoint_step(each)) is not None and each.is_dir()]
        return [each for _, each in sorted(numbered, reverse=True)]

    def last_checkpoint(self) -> Path | None:
        return next(iter(self.checkpoints()), None)

    def files(self) -> list[Path]:
        """Return all files that the run has written, except checkpoints and the trackers' folders."""
        settings = [self.config_file, self.arguments_file, self.manifest_file]
        results = [self.metrics_file, self.rollouts_file, self.results_file, self.curve_file]
        evaluations = map(self.evaluation_file, self.evaluation_steps())
        return [file for file in (*settings, *results, *evaluations) if file.is_file()]

    # Writing

    def write_config(self, config: dict[str, Any], arguments: dict[str, Any] | None = None) -> None:
        """Write config.yaml and, if `arguments` is given, arguments.yaml."""
        for file, values in ((self.config_file, config), (self.arguments_file, arguments)):
            if values is not None:
                write_aside(file, yaml12.to_yaml(_plain(values)))

    def write_manifest(
        self,
        rows: dict[str, Any] | None,
        evaluation: Sequence[dict[str, Any]] = (),
        hardware: dict[str, Any] | None = None,
        own_rows: dict[str, list[str]] | None = None,
    ) -> None:
        """Write manifest.json.

        Args:
            rows: the training environment's manifest.
            evaluation: manifests of other evaluation environments.
            hardware: the machine (`training.reporting.metrics.hardware`).
            own_rows: hashes of the training environment's rows (`evaluation.questions.own_rows`), if it has no
                manifest.
        """
        values = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": installed_commit(),
            "versions": {name: found for name in _PACKAGES if (found := installed_version(name))},
            "python": platform.python_version(),
            "platform": platform.platform(),
            **({"hardware": hardware} if hardware else {}),
            "rows": rows,
            **({"own_rows": own_rows} if own_rows else {}),
            **({"evaluation_rows": list(evaluation)} if evaluation else {}),
        }
        _write_json(self.manifest_file, values)

    def write_evaluation(self, step: int, values: dict[str, Any]) -> Path:
        """Write an evaluation and return the path of its file."""
        _write_json(self.evaluation_file(step), values)
        return self.evaluation_file(step)

    def write_results(self, values: dict[str, Any]) -> None:
        _write_json(self.results_file, values)

    def add_metrics(self, step: int, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        _append(self.metrics_file, [{"step": step, **values}])

    def add_rollouts(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        """Append a line per rollout to rollouts.jsonl."""
        _append(self.rollouts_file, [{"step": step, **record} for record in records])

    def cut_after(self, step: int) -> None:
        """Remove the records of all steps after `step`. A resumed run writes these records again. Raises
        `OutputFolderError` if the folder of the evaluations is a link."""
        check_no_link(self.evaluations)
        for file in (self.metrics_file, self.rollouts_file):
            if file.exists():
                kept = [each for each in _with_steps(file) if each["step"] <= step]
                write_aside(file, "".join(map(_line, kept)))
        for later in [each for each in self.evaluation_steps() if each > step]:
            self.evaluation_file(later).unlink()

    def discard(self, folders: Sequence[Path] = ()) -> None:
        """Remove the files of a run that never started, along with `folders`."""
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.config_file, self.arguments_file, self.manifest_file):
            file.unlink(missing_ok=True)
        for folder in (self.evaluations, self.path):
            with contextlib.suppress(OSError):  # the folder may contain other files
                folder.rmdir()


@lru_cache(maxsize=1)
def installed_commit() -> str | None:
    """Return the Git commit of this code if it was installed from Git or is a checkout, or None if the commit is
    unknown."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        source = json.loads(metadata.distribution("rg-env").read_text("direct_url.json") or "{}")
        if "vcs_info" in source:
            return str(source["vcs_info"]["commit_id"])
    root = Path(__file__).parents[2]
    found = run(["git", "-C", str(root), "rev-parse", "HEAD"], deadline_s=5) if (root / ".git").exists() else None
    return found.output.strip() or None if found and found.code == 0 else None


def is_missing_folder(model: str) -> bool:
    """Whether a model name is the path of a missing folder rather than a name on the Hub."""
    is_path = model.startswith((".", "/", "~", f"{OUTPUTS}/")) or model.count("/") > 1
    is_path |= os.path.isdir(os.path.dirname(model)) and RunFolder.is_run(Path(model).parent)
    return is_path and not os.path.exists(model)


def gguf_file(model: str) -> Path | None:
    """Return the GGUF file with a model's weights: `model` itself, or the only GGUF file in a folder without
    config.json. Return None for other models."""
    path = Path(model)
    files = [path] if path.is_file() else [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
    return files[0] if len(files) == 1 and files[0].suffix == ".gguf" else None


def model_path_problem(model: str, *, adapters: bool = False) -> str | None:
    """Return the reason why no model can be loaded from a path: the folder does not exist, or does not contain a causal
    language model (or, with `adapters`, LoRA adapters). Return None for a valid path or a name on the Hub."""
    if is_missing_folder(model):
        return f"the folder {model} does not exist"
    if (config := Path(model) / "config.json").is_file():
        with contextlib.suppress(InputError):  # a damaged file is reported when the model is loaded
            return f"{model}: {problem}" if (problem := model_kind_problem(read_json(config))) else None
        return None
    if not os.path.exists(model) or gguf_file(model) or (adapters and (Path(model) / "adapter_config.json").is_file()):
        return None
    if RunFolder.is_run(Path(model)):
        last = RunFolder(Path(model)).last_checkpoint()
        if last is None:
            return f"{model} is a run without checkpoint-N folders, so it has not saved a model yet"
        return f"{model} is a run, not a model: pass {last}"
    return f"{model} is not a model folder: config.json and safetensors files are required"


def model_kind_problem(config: Mapping[str, Any]) -> str | None:
    """Return the reason a model with these contents of config.json is not a causal language model, or None."""
    given = config.get("architectures")
    names = [one_line(each, 60) for each in given if isinstance(each, str)] if isinstance(given, list) else []
    others = [each for each in names if re.search("For(?!CausalLM|ConditionalGeneration)", each)]
    if not config.get("is_encoder_decoder") and (not names or len(others) < len(names)):
        return None
    return (
        f"{', '.join(names) or 'an encoder-decoder'} is not a causal language model, which predicts the next token: "
        "use one, such as a Qwen, Llama or Gemma model"
    )


def adapter_config(model: str) -> dict[str, Any] | None:
    """Return the contents of a LoRA adapter's adapter_config.json, or None if `model` is not a folder with adapters.

    Raises:
        InputError: the file is damaged, or does not name the adapters' base model.
    """
    file = Path(model) / "adapter_config.json"
    if not file.is_file():
        return None
    config = read_json(file)
    if not isinstance(config.get("base_model_name_or_path"), str):
        raise InputError(f"{file} does not name the adapters' base model (base_model_name_or_path)")
    return config


def base_model(model: str) -> str:
    """Return the base model of LoRA adapters, or `model` itself if it is not a folder with adapters. Raises the same
    errors as `adapter_config`."""
    config = adapter_config(model)
    return model if config is None else str(config["base_model_name_or_path"])


def checkpoint_step(folder: Path) -> int | None:
    """Return N for a folder named checkpoint-N, or None for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else None


def run_name(tasks: Sequence[str], label: str) -> str:
    """Return a run's name: the first three of its `tasks`, the number of other tasks (if any), and `label`."""
    more = f"-and-{len(tasks) - 3}-more" if len(tasks) > 3 else ""
    return cut_bytes(f"{cut_bytes('+'.join(tasks[:3]), 60)}{more}-{label}")


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises `InputError` if the file is damaged or unreadable."""
    return _mapping(file, json.loads)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file. Raises `InputError` if the file is damaged or unreadable."""
    return _mapping(file, yaml12.load)


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Read the objects in a .jsonl file. An incomplete last line is ignored.

    Raises:
        InputError: the file is damaged or unreadable.
    """
    try:
        # Read as bytes because str.splitlines() would also split at other characters, such as U+2028, in the model's
        # text.
        with opened_to_read(file) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        return
                    raise damaged(file, f"line {number}: {one_line(error)}") from error
                if not isinstance(values, dict):
                    raise damaged(file, f"line {number} is not a JSON object")
                yield values
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error


def _with_steps(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl or rollouts.jsonl, or nothing if the file is missing. Raises `InputError` if a
    line has no step."""
    for record in json_lines(file) if file.is_file() else ():
        if not is_number(record.get("step")):
            raise damaged(file, "a line has no step")
        yield record


def damaged(file: Path, reason: str) -> InputError:
    """Return the error for a damaged file that rg_env wrote."""
    return InputError(f"{file} is damaged: {reason}; restore it from a copy, or remove it")


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turn errors from values of an unexpected type, in files that rg_env wrote, into the error for a damaged file."""
    try:
        yield
    except RGEnvError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise damaged(path, f"a value is missing or of another kind ({one_line(repr(error), 120)})") from error


def free_folder(
    output_dir: str | Path | None,
    name: str,
    *,
    may_have_files: bool = False,
    remedy: str = "choose another output folder",
    resume: str = "--resume auto",
    create: bool = False,
) -> Path:
    """Return an output folder, checked but, unless `create` is set, not yet created. The default is a new folder in
    `outputs/`, named after `name` and the time.

    Args:
        create: whether to create the default folder, so that no other process chooses it. It is removed when this
            process exits if it is still empty.
        remedy: advice for the error message.
        resume: the command-line option that resumes from the files in the folder, or "" if resuming is not possible.

    Raises:
        OutputFolderError: the folder is not empty or not writable.
    """
    if output_dir is None:
        stem = OUTPUTS / f"{cut_bytes(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = next(p for n in range(1000) if not (p := stem if n == 0 else Path(f"{stem}-{n}")).exists())
        while create and not _created(folder):  # another process has just created it
            folder = Path(f"{stem}-{secrets.token_hex(4)}")
    else:
        folder = Path(output_dir)
    try:
        has_files = folder.is_dir() and any(folder.iterdir())
        nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        tempfile.TemporaryFile(dir=nearest).close()  # permission bits do not reveal read-only or full disks
    except OSError as error:
        raise OutputFolderError(f"cannot write to {one_line(folder, 80)}: {reason_of(error)}; {remedy}") from error
    if has_files and not may_have_files:
        raise not_empty(folder, remedy, resume)
    return folder


def not_empty(
    folder: Path, remedy: str = "choose another output folder", resume: str = "--resume auto"
) -> OutputFolderError:
    """Return the error for a folder that may contain another run. `resume` is the option that resumes that run."""
    return OutputFolderError(
        f"{folder} is not empty and may contain another run; {remedy}, "
        + (f"move this folder, or resume the run ({resume})" if resume else "or move this folder")
    )


_new_folders: set[Path] = set()


def _created(folder: Path) -> bool:
    """Create a folder with its parents. Return False if it exists."""
    missing = {each.absolute() for each in (folder, *folder.parents) if not each.exists()}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise OutputFolderError(f"cannot write to {one_line(folder, 80)}: {reason_of(error)}") from error
    _new_folders.update(missing)
    return True


@atexit.register
def _remove_unused() -> None:
    for folder in sorted(_new_folders, reverse=True):
        with contextlib.suppress(OSError):  # the folder is in use
            folder.rmdir()


@contextmanager
def locked(folder: Path, wait_s: float = 0.0, *, empty: bool = False) -> Iterator[None]:
    """Hold the lock on the folder of a run, an evaluation or a sweep while writing to it. The system releases the lock
    if the process dies. On file systems without locks, do nothing.

    Args:
        wait_s: seconds to wait for another process, such as a canceled job that is still saving.
        empty: whether the folder must be empty, although another process may have used it since it was chosen.

    Raises:
        OutputFolderError: another process holds the lock, or the folder cannot be opened, or is not `empty`.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise OutputFolderError(f"cannot open the folder {folder}: {error.strerror}") from error
    try:
        deadline, is_waiting = time.monotonic() + wait_s, False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = _lock_holder(descriptor)
                if time.monotonic() >= deadline:
                    raise OutputFolderError(
                        f"{holder} is writing to {folder}: wait for it, stop it, or choose another output folder"
                    ) from error
                if not is_waiting:
                    print(f"waiting for {holder}, which is writing to {folder}", flush=True)
                is_waiting = True
                time.sleep(0.2)
                continue
            except OSError:
                pass
            break
        remove_partial(folder)
        if empty and any(folder.iterdir()):
            raise not_empty(folder, resume="")
        yield
    finally:
        os.close(descriptor)


def _lock_holder(descriptor: int) -> str:
    """Return "process N", or "another process" if the system does not list locks or the process is on another
    machine."""
    inode = str(os.fstat(descriptor).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():  # 1: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF
            _, kind, _, _, process, place, *_ = line.split()
            if kind == "FLOCK" and place.rpartition(":")[2] == inode and int(process) > 0:
                return f"process {process}"
    return "another process"


@contextmanager
def removed_on_error(folder: str | Path) -> Iterator[None]:
    """On an error within the block, remove the folder and its parents if they are new and empty."""
    path = Path(folder)
    missing = [each for each in (path, *path.parents) if not each.exists() or each.absolute() in _new_folders]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for each in missing:
                each.rmdir()
        raise


def _mapping(file: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        values = parse(read_bytes(file).decode())
    except InputError:
        raise
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(file, one_line(error)) from error
    if not isinstance(values, dict):
        raise damaged(file, "it does not contain keys and values")
    return values


def _write_json(file: Path, values: dict[str, Any]) -> None:
    write_aside(file, json.dumps(_plain(values), indent=1, ensure_ascii=False) + "\n")


def _append(file: Path, records: Sequence[dict[str, Any]]) -> None:
    with opened_to_append(file) as lines:
        lines.write("".join(map(_line, records)).encode("utf-8", "backslashreplace"))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(_plain(record), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return `value` converted for JSON and YAML. NaN and infinity become None because JSON cannot represent them."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
