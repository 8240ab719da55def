"""What is published: the weights in a folder, the run that trained them, and the model that they were trained from.

    source = find_source(Path("outputs/RUN"))    # its last checkpoint
    source.kind, source.step, source.run, source.base

Reads files only: no network, no torch.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from huggingface_hub import HfApi, ModelCard
from safetensors import SafetensorError, safe_open

from rg_env.core.hub import repo_problem
from rg_env.core.run_folder import RunFolder, read_json
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.evaluation.config import TINY
from rg_env.tiny import POLICY_DIR
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, saved_step, weight_files

T = TypeVar("T")
Kind = Literal["model", "adapter", "export"]
"""A complete model folder, adapters, or weights that must be exported first."""

_STEP = re.compile(r"checkpoint-(\d+)(?:-.+)?|global_step_?(\d+)")
"""Names of checkpoints, and of exports of checkpoints."""
_FOREIGN = ("*.bin", "*.pt", "*.distcp", ".metadata", "latest", "global_step*", "actor", "adapter_config.json")
"""Files and folders of checkpoints that `rg-env export` may be able to read."""
_REMEDY = "give the folder of a run, a checkpoint-N in one, or a model folder (config.json, model.safetensors)"


@dataclass(frozen=True)
class Base:
    """The model that training started from."""

    name: str | None = None
    """As a card shows it; None: unknown."""
    on_hub: bool = False
    """Whether `name` is a repository on the Hub."""
    folder: Path | None = None
    """The folder of a local model."""


@dataclass(frozen=True)
class Licence:
    """The licence of a base model, under the keys of a model card's metadata."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    stated_by: str | None = None
    """Where it was found, in words."""


@dataclass(frozen=True)
class Source:
    """The weights to publish."""

    folder: Path
    kind: Kind
    step: int | None
    """The training step they were saved after; None: unknown."""
    run: RunFolder | None
    """The run that trained them; None: unknown."""
    checkpoint: Path | None
    """The folder that training can resume from; None: there is none for these weights."""

    @cached_property
    def adapter(self) -> dict[str, Any]:
        """adapter_config.json; empty unless the weights are adapters."""
        file = self.folder / "adapter_config.json"
        return read_json(file) if file.is_file() else {}

    @cached_property
    def base(self) -> Base:
        name: Any = self.run.config().get("model") if self.run else self.adapter.get("base_model_name_or_path")
        name = name.get("name") if isinstance(name, dict) else name
        if not name:
            return Base()
        if name in (TINY, str(POLICY_DIR)):
            return Base(TINY)
        folder = Path(name).expanduser()
        if folder.is_dir() or folder.is_absolute() or repo_problem(name):
            return Base(folder.name or name, folder=folder)
        return Base(name, on_hub=True)

    @property
    def rounded_to(self) -> str | None:
        """The dtypes of an export that rounded the weights; None: these are the weights that the run evaluated."""
        if self.kind == "export" or (self.folder / "trainer_state.json").is_file():
            return None
        files = weight_files(self.folder, ADAPTER if self.kind == "adapter" else WEIGHTS)
        dtypes = {dtype for file in files for dtype in _read(file, lambda tensor: tensor.get_dtype())}
        return ", ".join(sorted(dtypes)) if dtypes - {"F32"} else None


def find_source(path: Path) -> Source:
    """The weights at `path`; for a run, those of its last checkpoint.

    Raises:
        InputError: it is neither a model nor a run, or its weights are damaged.
    """
    if not os.path.isdir(path):  # unlike Path.is_dir, False also for names that are too long
        problem = "is a file" if os.path.isfile(path) else "does not exist"
        raise InputError(f"{one_line(path)} {problem}: {_REMEDY}")
    folder, kind = path, _kind(path)
    if kind is None and (last := RunFolder(path).last_checkpoint()):
        folder, kind = last, _kind(last)
    if kind is None:
        if folder != path:
            raise InputError(f"{folder} has no model: copy it again, or name another checkpoint of the run")
        if RunFolder.is_run(path):
            raise InputError(f"{path} is a run without a checkpoint-N: it has no model yet")
        raise InputError(f"{path} is neither a run nor a model: {_REMEDY}")
    runs = [each for each in (folder.parent, folder.parent.parent, path) if RunFolder.is_run(each)]
    resumable = all((folder / name).is_file() for name in ("resume.json", "trainer_state.json"))
    run = RunFolder(runs[0]) if runs else None
    return Source(folder, kind, _step(folder), run, folder if resumable else None)


def find_licence(base: Base, api: HfApi | None = None) -> Licence:
    """The licence that the base model's own card states; of a model on the Hub only with `api`."""
    if base.name == TINY:
        return Licence("apache-2.0", stated_by="the package that includes it")
    try:
        if base.folder is not None:
            stated_by, data = "its own card", ModelCard.load(base.folder / "README.md").data
        elif api is not None and base.name is not None:
            stated_by, data = "its card on the Hub", api.model_info(base.name, timeout=10).card_data
        else:
            return Licence()
    except Exception:  # whatever the reason, the licence is then unknown, and the card says so
        return Licence()
    if data is None or not isinstance(data.get("license"), str):
        return Licence()
    return Licence(data.get("license"), data.get("license_name"), data.get("license_link"), stated_by)


def _kind(folder: Path) -> Kind | None:
    """None: no weights."""
    if (folder / "adapter_config.json").is_file() and _is_complete(folder, ADAPTER):
        return "adapter"
    if (folder / "config.json").is_file() and _is_complete(folder, WEIGHTS):
        return "model"
    return "export" if any(any(folder.glob(each)) for each in _FOREIGN) or weight_files(folder, WEIGHTS) else None


def _is_complete(folder: Path, name: str) -> bool:
    """Whether all weights are there and none is empty, as ZeRO-3 can leave them."""
    files = weight_files(folder, name)
    return bool(files) and not any(0 in shape for file in files for shape in _read(file, lambda each: each.get_shape()))


def _read(file: Path, attribute: Callable[[Any], T]) -> list[T]:
    """An attribute of each tensor in a safetensors file, whose length is checked as well."""
    try:
        with safe_open(file, framework="np") as weights:
            return [attribute(weights.get_slice(key)) for key in weights.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is damaged or cannot be read: {one_line(error)}") from error


def _step(folder: Path) -> int | None:
    if (step := saved_step(folder)) is not None:
        return step
    match = _STEP.fullmatch(folder.name)
    return int(match[1] or match[2]) if match else None
