"""What is to be published: the weights, what kind they are, and the run that left them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from safetensors import SafetensorError, safe_open

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, saved_step, weight_files

T = TypeVar("T")
Kind = Literal["model", "adapter", "export"]
"""A whole model folder; adapters; or something that is to be exported as one of these first."""

_STEP = re.compile(r"checkpoint-(\d+)(?:-.+)?|global_step_?(\d+)")
"""Also what an export of a checkpoint is called."""
_OTHERS = ("*.bin", "*.pt", "*.distcp", ".metadata", "latest", "global_step*", "actor", "adapter_config.json")
"""By which a folder is known that `rg-env export` may read."""
_WHAT = "give the folder of a run, a checkpoint-N of one, or a model folder (config.json, model.safetensors)"


@dataclass(frozen=True)
class Source:
    """What is to be published."""

    folder: Path
    """With the weights."""
    kind: Kind
    step: int | None
    """Of the training that made them."""
    run: Path | None
    """The folder of the run."""
    checkpoint: Path | None
    """The folder that training can go on from; None: there is none of these weights."""

    @property
    def rounded_to(self) -> str | None:
        """Types of the weights where an export rounded them; None: they are what the run evaluated."""
        if self.kind == "export" or (self.folder / "trainer_state.json").is_file():
            return None
        files = weight_files(self.folder, ADAPTER if self.kind == "adapter" else WEIGHTS)
        found = {kind for file in files for kind in _read(file, _types)}
        return ", ".join(sorted(found)) if found - {"F32"} else None


def find(path: Path) -> Source:
    """What lies at `path`; of a run its last checkpoint.

    Raises:
        InputError: no model, no run; or weights that are damaged.
    """
    try:
        there, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte in it
        there = is_file = False
    if not there:
        raise InputError(f"{str(path)[:200]} {'is a file' if is_file else 'does not exist'}: {_WHAT}")
    kind = _kind(path)
    if kind is not None:
        runs = (path.parent, path.parent.parent)
        run = next((each for each in runs if RunFolder.is_run(each)), path if RunFolder.is_run(path) else None)
        return Source(path, kind, _step(path), run, _checkpoint(path))
    folder = RunFolder(path).last_checkpoint()
    if folder is None:
        if RunFolder.is_run(path):
            raise InputError(f"{path} is a run without a checkpoint-N: there is no model in it yet")
        raise InputError(f"{path} is neither a run nor a model: {_WHAT}")
    if (kind := _kind(folder)) is None:
        raise InputError(f"{folder} holds no model: copy it again, or name another checkpoint of the run")
    return Source(folder, kind, _step(folder), path, _checkpoint(folder))


def _checkpoint(folder: Path) -> Path | None:
    return folder if all((folder / name).is_file() for name in ("resume.json", "trainer_state.json")) else None


def _kind(folder: Path) -> Kind | None:
    """What the weights in `folder` are; None: there are none."""
    if (folder / "adapter_config.json").is_file() and _whole(folder, ADAPTER):
        return "adapter"
    if (folder / "config.json").is_file() and _whole(folder, WEIGHTS):
        return "model"
    return "export" if any(any(folder.glob(each)) for each in _OTHERS) or weight_files(folder, WEIGHTS) else None


def _whole(folder: Path, name: str) -> bool:
    """Whether all weights are there, in full. Raises `InputError` where a file of them is damaged."""
    files = weight_files(folder, name)
    return bool(files) and not any(_read(file, _has_empty) for file in files)


def _has_empty(file: Path) -> bool:
    """Whether a tensor has no values, as ZeRO-3 can leave them. The file's length is checked by its reader."""
    with safe_open(file, framework="np") as weights:
        return any(0 in weights.get_slice(key).get_shape() for key in weights.keys())  # noqa: SIM118


def _types(file: Path) -> set[str]:
    with safe_open(file, framework="np") as weights:
        return {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118


def _read(file: Path, how: Callable[[Path], T]) -> T:
    try:
        return how(file)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{file} is damaged, or cannot be read: {one_line(reason)}") from error


def _step(folder: Path) -> int | None:
    if (step := saved_step(folder)) is not None:
        return step
    match = _STEP.fullmatch(folder.name)
    return int(match[1] or match[2]) if match else None
