"""Find a checkpoint in a folder, with its weights, run, step and base model.

    checkpoint = find_checkpoint(Path("outputs/RUN"))     # the last checkpoint (the most accurate one if best=True)
    checkpoint.kind, checkpoint.step, checkpoint.run, checkpoint.base

This module only reads files and needs neither the network nor torch.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from safetensors import safe_open

from rg_env.core.files import links_out
from rg_env.core.hub import repo_problem
from rg_env.core.run_folder import RunFolder, checkpoint_step, read_json
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.evaluation.results import read_evaluations
from rg_env.tiny import POLICY_DIR, TINY
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, read_shapes, saved_step, weight_files

Kind = Literal["adapter", "deepspeed", "plain"]
"""Format of a checkpoint: LoRA adapters, DeepSpeed shards, or complete weights."""

BIN = "pytorch_model.bin"
TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
"""Tokenizer files. Every tokenizer has at least one of the first five."""
_STEP = re.compile(r"checkpoint-(\d+)(?:-.+)?|global_step(\d+)")
"""Pattern for the folder names of checkpoints and their exports."""
_KINDS = (
    f"a model folder ({WEIGHTS} or {BIN}), adapters (adapter_config.json), DeepSpeed's global_stepN folder, or a run "
    "with checkpoint-N folders"
)
_MERGERS = {
    "*.distcp": "accelerate merge-weights {folder} MODEL",
    "model_world_size_*_rank_*.pt": "python -m verl.model_merger merge --backend fsdp --local_dir {folder} "
    "--target_dir MODEL",
}
"""Commands that merge the shards of other trainers (FSDP, verl), by the names of the shards."""


@dataclass(frozen=True)
class Base:
    """The model that training started from."""

    name: str | None = None
    """Name shown on the card, or None if it is unknown."""
    on_hub: bool = False
    """Whether `name` is a repository on the Hub."""
    folder: Path | None = None
    """Folder that contains the model, or None if the model is not local."""

    @classmethod
    def named(cls, name: str | None) -> "Base":
        """Create a `Base` from "tiny", or from a model name or folder that `from_pretrained` accepts."""
        if not name:
            return cls()
        if name in (TINY, str(POLICY_DIR)):
            return cls(TINY, folder=POLICY_DIR)
        folder = Path(name).expanduser()
        if folder.is_dir() or folder.is_absolute() or repo_problem(name):
            return cls(folder.name or name, folder=folder)
        return cls(name, on_hub=True)

    @property
    def source(self) -> str:
        """Name or folder to pass to `from_pretrained`."""
        return str(self.folder or self.name)


@dataclass(frozen=True)
class Checkpoint:
    """Location and origin of a checkpoint's weights."""

    folder: Path
    """Folder of the checkpoint, after which exports are named."""
    parts: dict[Kind, Path]
    """Folders with the weights, by format. An export uses the first entry."""
    step: int | None
    """Training step after which the weights were saved, or None if it is unknown."""
    run: RunFolder | None
    """Run that trained the weights, or None if it is unknown."""
    trained_from: str | None = None
    """Base model given by the caller, if any, which overrides the recorded base model."""

    @property
    def kind(self) -> Kind:
        return next(iter(self.parts))

    @property
    def weights(self) -> Path:
        """Folder with the weights in the format `kind`."""
        return self.parts[self.kind]

    @cached_property
    def adapter(self) -> dict[str, Any]:
        """Contents of adapter_config.json. Empty unless the weights are adapters."""
        file = self.weights / "adapter_config.json"
        return read_json(file) if self.kind == "adapter" and file.is_file() else {}

    @cached_property
    def trained_model(self) -> dict[str, Any]:
        """The `model` section of the run's config."""
        run = self.run.config() if self.run and self.run.config_file.is_file() else {}
        model = run.get("model") or {}
        return model if isinstance(model, dict) else {"name": model}

    @cached_property
    def base(self) -> Base:
        recorded = self.adapter.get("base_model_name_or_path") or self.trained_model.get("name")
        return Base.named(self.trained_from or recorded)

    @property
    def has_weights(self) -> bool:
        """Whether the folder has complete weights as safetensors and their configuration. Raises `InputError` if the
        weights cannot be read."""
        name, config = (ADAPTER, "adapter_config.json") if self.kind == "adapter" else (WEIGHTS, "config.json")
        shapes = read_shapes(self.folder, name)
        return bool(shapes) and all(0 not in shape for shape in shapes.values()) and (self.folder / config).is_file()

    @property
    def is_resumable(self) -> bool:
        """Whether the folder contains everything needed to resume training."""
        return (self.folder / "resume.json").is_file()

    @property
    def state_path(self) -> str:
        """Path under which the training state is published in a repository."""
        return "run/checkpoint" + ("" if self.step is None else f"-{self.step}")

    @property
    def rounded_to(self) -> str | None:
        """Dtypes to which an export rounded the weights, or None if the run evaluated exactly these weights."""
        if (self.folder / "trainer_state.json").is_file():
            return None
        dtypes: set[str] = set()
        for file in weight_files(self.folder, ADAPTER if self.kind == "adapter" else WEIGHTS):
            with safe_open(file, framework="np") as tensors:
                dtypes |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        return ", ".join(sorted(dtypes)) if dtypes - {"F32"} else None


def find_checkpoint(path: Path, *, best: bool = False, base: str | None = None) -> Checkpoint:
    """Find the checkpoint at `path`. For a run, return the last checkpoint or, with `best`, the checkpoint with the
    highest recorded accuracy.

    Args:
        base: base model (default: the base model recorded by the checkpoint or its run).

    Raises:
        InputError: `path` does not contain a complete checkpoint, or cannot be read.
    """
    if not os.path.isdir(path):  # unlike Path.is_dir, this also returns False for names that are too long
        raise InputError(f"{one_line(path)} is not an existing folder; a checkpoint is {_KINDS}")
    try:
        chosen = _choose(path, best)
        check_links([chosen], path)
        return _checkpoint(chosen, base)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def check_links(files: Iterable[Path], *folders: Path) -> None:
    """Raise `InputError` if one of `files` is a link to a file outside `folders`. In the Hub's cache, links to the
    repository's own blobs are accepted."""
    for file in files:
        if links_out(file, *folders):
            raise InputError(
                f"{file} is a link to {file.resolve()}, which is outside the published folders: replace it with a copy"
            )


def _choose(path: Path, best: bool) -> Path:
    """Return the last or the most accurate checkpoint of a run, or `path` itself if it is not a run."""
    run, has_weights = RunFolder(path), bool(_parts_in(path))
    if not best:
        return path if has_weights else run.last_checkpoint() or path
    if has_weights or not run.checkpoints():
        raise InputError(f"{path} is not a run with checkpoint-N folders: omit --best")
    overall = {each.step or 0: each.overall() for each in read_evaluations(run)}
    measured = {step: each.accuracy for step, each in overall.items() if each and each.accuracy is not None}
    saved = {step: folder for folder in run.checkpoints() if (step := checkpoint_step(folder)) in measured}
    if not saved:
        raise InputError(f"{path} has no recorded accuracy for any of its checkpoints: pass one, or omit --best")
    return saved[max(saved, key=lambda step: (measured[step], step))]


def _checkpoint(folder: Path, base: str | None) -> Checkpoint:
    parts = _parts_in(folder)
    if not parts:
        problem = _foreign(folder) or f"is not a complete checkpoint; a checkpoint is {_KINDS}"
        raise InputError(f"{folder} {problem}")
    runs = [each for each in (folder.parent, folder.parent.parent, folder) if RunFolder.is_run(each)]
    named = (each.name for each in (folder, *parts.values(), folder.parent))
    steps = [int(match[1] or match[2]) for name in named if (match := _STEP.fullmatch(name))]
    step = saved_step(folder)
    return Checkpoint(
        folder=folder,
        parts=parts,
        step=next(iter(steps), None) if step is None else step,
        run=RunFolder(runs[0]) if runs else None,
        trained_from=base,
    )


def _foreign(folder: Path) -> str | None:
    """Return how to merge the shards of another trainer in `folder`, or None if it has no such shards."""
    for shards, command in _MERGERS.items():
        for file in (file for depth in ("", "*/", "*/*/") for file in sorted(folder.glob(depth + shards))):
            merge = command.format(folder=quote(str(file.parent)))
            return f"has another trainer's shards ({one_line(file.name, 60)}): merge them first (`{merge}`)"
    return None


def _parts_in(folder: Path) -> dict[Kind, Path]:
    """Return the folders with weights, by format, in order of priority. Adapters come first because they contain all
    trained weights. Shards come before the gathered weights next to them, which are less precise."""
    found: dict[Kind, Path] = {}
    if (folder / "adapter_config.json").is_file() or _has_weights(folder, ADAPTER):
        found["adapter"] = folder
    if shards := _deepspeed(folder):
        found["deepspeed"] = shards
    if _has_weights(folder, WEIGHTS, BIN):
        found["plain"] = folder
    return found


def _has_weights(folder: Path, *names: str) -> bool:
    """Whether `folder` contains one of the weight files in `names`, or the index of one that is split into several
    files."""
    return any((folder / file).is_file() for name in names for file in (name, f"{name}.index.json"))


def _deepspeed(folder: Path) -> Path | None:
    """Find the folder with DeepSpeed's shards: `folder` itself, or the subfolder named in its `latest` file."""
    shards, latest = "*_optim_states.pt", folder / "latest"
    if any(folder.glob(shards)):
        return folder
    if not latest.is_file():
        return None
    tag = latest.read_text(errors="replace").strip()
    found = {file.parent.name: file.parent for file in folder.glob(f"*/{shards}")}
    if tag not in found:
        raise InputError(
            f"{folder} lacks the shards in {tag[:40]!r}, which is named in DeepSpeed's 'latest' file: copy that folder "
            "as well"
        )
    return found[tag]
