"""Find a checkpoint in a folder, with its weights, run, step and base model.

    checkpoint = find_checkpoint(Path("outputs/RUN"))     # the last checkpoint (the most accurate one if best=True)
    checkpoint.kind, checkpoint.step, checkpoint.run, checkpoint.base

This module only reads files and needs neither the network nor torch.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from safetensors import safe_open

from rg_env.core.hub import repo_problem
from rg_env.core.run_folder import RunFolder, checkpoint_step, read_json
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.evaluation.results import read_evaluations
from rg_env.tiny import POLICY_DIR, TINY
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, read_shapes, saved_step, weight_files

Kind = Literal["adapter", "deepspeed", "dtensor", "distcp", "plain"]
"""Format of a checkpoint: LoRA adapters, DeepSpeed shards, one file of DTensors per process (verl),
torch.distributed.checkpoint (FSDP), or complete weights."""

BIN = "pytorch_model.bin"
TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
"""Tokenizer files. Every tokenizer has at least one of the first five."""
_STEP = re.compile(r"checkpoint-(\d+)(?:-.+)?|global_step_?(\d+)")
"""Pattern for the folder names of checkpoints and their exports."""
_KINDS = (
    f"a model folder ({WEIGHTS} or {BIN}), adapters (adapter_config.json), DeepSpeed's global_stepN folder, "
    "model_world_size_N_rank_R.pt files, .distcp files with their .metadata, or a run with checkpoint-N folders"
)


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
    near: tuple[Path, ...]
    """Folders that may contain the configuration and the tokenizer, starting with the folder that contains the
    weights."""
    state: Path | None
    """Folder with the optimizer state, which is needed to resume training, or None if the checkpoint has only weights.
    """
    trained_from: str | None = None
    """Base model given by the caller, if any, which overrides the recorded base model."""
    note: str | None = None
    """Message for the user about the choice of this checkpoint."""

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

    @cached_property
    def is_ready(self) -> bool:
        """Whether the folder can be published without an export."""
        name, config = (ADAPTER, "adapter_config.json") if self.kind == "adapter" else (WEIGHTS, "config.json")
        if (self.kind == "adapter" and self.weights != self.folder) or not (self.folder / config).is_file():
            return False
        shapes, problem = read_shapes(self.folder, name)
        if problem:
            raise InputError(f"{self.folder}: {problem}")
        return bool(shapes) and not any(0 in shape for shape in shapes.values())  # ZeRO-3 can leave weights empty

    @property
    def is_resumable(self) -> bool:
        """Whether an rg-env run can resume from `state`."""
        return self.run is not None and self.state is not None and (self.state / "resume.json").is_file()

    @property
    def state_path(self) -> str:
        """Path under which `state` is published in a repository."""
        return f"{'run/' if self.run else ''}checkpoint" + ("" if self.step is None else f"-{self.step}")

    @property
    def rounded_to(self) -> str | None:
        """Dtypes to which an export rounded the weights, or None if the run evaluated exactly these weights."""
        if not self.is_ready or (self.folder / "trainer_state.json").is_file():
            return None
        dtypes: set[str] = set()
        for file in weight_files(self.folder, ADAPTER if self.kind == "adapter" else WEIGHTS):
            with safe_open(file, framework="np") as tensors:
                dtypes |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        return ", ".join(sorted(dtypes)) if dtypes - {"F32"} else None

    def config_folder(self) -> Path | None:
        """Return the folder with config.json, or None if only the base model on the Hub has this file.

        Raises:
            InputError: config.json was not found.
        """
        near = () if self.kind == "adapter" else self.near
        return self._folder_with(near, ("config.json",), "config.json, which describes the model")

    def tokenizer_folder(self) -> Path | None:
        """Return the folder with the tokenizer, or None if only the base model on the Hub has a tokenizer. Raises the
        same errors as `config_folder`."""
        return self._folder_with(self.near, TOKENIZER[:5], "tokenizer (tokenizer.json, tokenizer.model, ...)")

    def _folder_with(self, near: Sequence[Path], names: Sequence[str], what: str) -> Path | None:
        for folder in (*near, *([self.base.folder] if self.base.folder else [])):
            if any((folder / name).is_file() for name in names):
                return folder
        if self.base.on_hub:
            return None
        searched = f", and neither does {self.base.folder}" if self.base.folder else ""
        remedy = "pass the base model as --base NAME_OR_FOLDER"
        raise InputError(f"{self.folder} has no {what}{searched}: {remedy}")


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
        folder, note = _choose(path, best)
        return _checkpoint(folder, base, note)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _choose(path: Path, best: bool) -> tuple[Path, str | None]:
    """Return the checkpoint in a run (or `path` itself) and a note about the choice."""
    run, own, tracker = RunFolder(path), _parts_in(path), path / "latest_checkpointed_iteration.txt"
    if best:
        if own or not run.checkpoints():
            raise InputError(f"{path} is not a run with checkpoint-N folders: omit --best")
        return _best(run)
    if own:
        return path, None
    if tracker.is_file():  # written by verl
        return path / f"global_step_{one_line(tracker.read_text(errors='replace').strip(), 20)}", None
    return run.last_checkpoint() or path, None


def _best(run: RunFolder) -> tuple[Path, str | None]:
    """Return the most accurate checkpoint, and a note if a step without a checkpoint was more accurate."""
    overall = {each.step or 0: each.overall() for each in read_evaluations(run)}
    measured = {step: each.accuracy for step, each in overall.items() if each and each.accuracy is not None}
    saved = {step: folder for folder in run.checkpoints() if (step := checkpoint_step(folder)) in measured}
    if not saved:
        raise InputError(
            f"{run.path} has no recorded accuracy for any of its checkpoints (the last is "
            f"{run.checkpoints()[0].name}): pass one of these checkpoints, or omit --best"
        )
    best, peak = (max(steps, key=lambda step: (measured[step], step)) for steps in (saved, measured))
    if measured[peak] == measured[best]:
        return saved[best], None
    return saved[best], (
        f"step {peak} ({measured[peak]:.3f}) was more accurate than step {best} ({measured[best]:.3f}), but was not "
        "saved; to save such steps, set output.save_every to the value of evaluation.every"
    )


def _checkpoint(folder: Path, base: str | None, note: str | None) -> Checkpoint:
    inner = folder if not (folder / "actor").is_dir() or _parts_in(folder) else folder / "actor"  # as in verl
    if not folder.is_dir() or not (parts := _parts_in(inner)):
        raise InputError(f"{folder} is not a complete checkpoint; a checkpoint is {_KINDS}")
    kind, weights = next(iter(parts.items()))
    near = [weights, inner, inner / "huggingface", folder, folder / "huggingface"]
    near += [weights.parent] if weights != inner or kind == "deepspeed" else []
    runs = [each for each in (folder.parent, folder.parent.parent, folder) if RunFolder.is_run(each)]
    names = [match for each in (folder, weights, folder.parent) if (match := _STEP.fullmatch(each.name))]
    step, has_state = saved_step(folder), any((folder / name).is_file() for name in ("resume.json", "optimizer.pt"))
    if step is None and names:
        step = int(names[0][1] or names[0][2])
    return Checkpoint(
        folder=folder,
        parts=parts,
        step=step,
        run=RunFolder(runs[0]) if runs else None,
        near=tuple(dict.fromkeys(each for each in near if each.is_dir())),
        state=folder if has_state or {"deepspeed", "dtensor", "distcp"} & parts.keys() else None,
        trained_from=base,
        note=note,
    )


def _parts_in(folder: Path) -> dict[Kind, Path]:
    """Return the folders with weights, by format, in order of priority. Adapters come first because they contain all
    trained weights. Shards come before the gathered weights next to them, which are less precise and may have been left
    empty by ZeRO-3."""
    found: dict[Kind, Path] = {}
    adapter = folder / "lora_adapter" if (folder / "lora_adapter").is_dir() else folder  # as in verl
    if (adapter / "adapter_config.json").is_file() or _has_weights(adapter, ADAPTER):
        found["adapter"] = adapter
    if shards := _deepspeed(folder):
        found["deepspeed"] = shards
    if any(folder.glob("model_world_size_*_rank_*.pt")):
        found["dtensor"] = folder
    for inner in (folder, *sorted(folder.glob("pytorch_model_fsdp_*"))):
        if (inner / ".metadata").is_file():
            found.setdefault("distcp", inner)
    if _has_weights(folder, WEIGHTS, BIN):
        found["plain"] = folder
    return found


def _has_weights(folder: Path, *names: str) -> bool:
    """Whether `folder` contains one of the weight files in `names`, or the index of one that is split into several
    files."""
    return any((folder / file).is_file() for name in names for file in (name, f"{name}.index.json"))


def _deepspeed(folder: Path) -> Path | None:
    """Find the folder with DeepSpeed's shards: `folder` itself, the subfolder named in its `latest` file or, without
    this file, the only subfolder with shards."""
    if any(folder.glob("*_states.pt")):
        return folder
    found, latest = sorted({file.parent for file in folder.glob("*/*_states.pt")}), folder / "latest"
    if latest.is_file():
        tag = latest.read_text(errors="replace").strip()
        found = [each for each in found if each.name == tag]
        if not found:
            raise InputError(
                f"{folder} lacks the folder {tag[:40]!r}, which is named in DeepSpeed's 'latest' file: copy that "
                "folder as well"
            )
    if len(found) > 1:
        raise InputError(f"{folder} has {len(found)} DeepSpeed folders but no 'latest' file: pass one of these folders")
    return found[0] if found else None
