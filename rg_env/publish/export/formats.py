"""What lies in a folder: which kind of checkpoint, of which step and run, and where its configuration may be.

Which reader a checkpoint has, by the kind that `locate` found.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError
from rg_env.publish.export.adapters import AdapterReader
from rg_env.publish.export.dtensor import DTensorReader
from rg_env.publish.export.zero import ZeroReader
from rg_env.training.checkpointing.distcp import DistcpReader
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, saved_step
from rg_env.training.checkpointing.readers import (
    BIN,
    GuardedReader,
    Reader,
    SafetensorsReader,
    has_adapter,
    has_weights,
    plain_reader,
)

Kind = Literal["plain", "deepspeed", "dtensor", "distcp", "adapter"]
_STEP = re.compile(r"(?:checkpoint-|global_step_?)(\d+)")
_KINDS = (
    f"a model folder ({WEIGHTS} or {BIN}), adapters (adapter_config.json), DeepSpeed's global_stepN, "
    "model_world_size_N_rank_R.pt, .distcp files with their .metadata, or a run with checkpoint-N"
)


@dataclass(frozen=True)
class Checkpoint:
    """What is to be exported."""

    folder: Path
    """What it is called after."""
    kind: Kind
    weights: Path
    """The folder with the files of that kind."""
    also: tuple[tuple[Kind, Path], ...] = ()
    """Other kinds that lie there too, and where."""
    step: int | None = None
    run: Path | None = None
    """The folder of the run that left it, with its evaluations."""
    companions: tuple[Path, ...] = ()
    """Folders that configuration and tokenizer may be in, the nearest first."""


def locate(path: Path, *, best: bool = False) -> Checkpoint:
    """The checkpoint at `path`; of a run the last one, or the one with the best recorded accuracy.

    Raises:
        InputError: there is none.
    """
    try:
        return _locate(path, best)
    except OSError as error:
        raise InputError(f"{str(path)[:200]} cannot be read: {error.strerror}") from error


def _locate(path: Path, best: bool) -> Checkpoint:
    if not path.is_dir():
        what = "is a file: give the folder that it is in" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}; a checkpoint is {_KINDS}")
    checkpoints = RunFolder(path).checkpoints()
    own = _kinds_in(path)
    if best and (own or not checkpoints):
        raise InputError(f"{path} is no run with checkpoint-N to take the best of: leave out --best")
    if checkpoints and not own:
        return _checkpoint(_best(path, checkpoints) if best else checkpoints[0])
    tracker = path / "latest_checkpointed_iteration.txt"  # verl's run
    if not own and tracker.is_file():
        try:
            return _checkpoint(path / f"global_step_{int(tracker.read_text())}")
        except ValueError as error:
            raise InputError(f"{tracker} names no step: give the folder global_step_N itself") from error
    return _checkpoint(path)


def _checkpoint(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; a checkpoint is {_KINDS}")
    inner = folder / "actor" if not _kinds_in(folder) and (folder / "actor").is_dir() else folder
    kinds = _kinds_in(inner)
    if not kinds:
        if any(inner.glob("*.distcp")):
            raise InputError(f"{inner} has .distcp files without their .metadata: it was not written to the end")
        raise InputError(f"{folder} is no checkpoint: there is none of {_KINDS}")
    kind, weights = next(iter(kinds.items()))
    around = [weights, inner, inner / "huggingface", folder, folder / "huggingface"]
    around += [weights.parent] if weights != inner or kind == "deepspeed" else []
    run = next((each for each in (folder.parent, folder.parent.parent) if RunFolder.is_run(each)), None)
    return Checkpoint(
        folder=folder,
        kind=kind,
        weights=weights,
        also=tuple(kinds.items())[1:],
        step=_step(folder, weights),
        run=run,
        companions=tuple(dict.fromkeys(each for each in around if each.is_dir())),
    )


def _kinds_in(folder: Path) -> dict[Kind, Path]:
    """Kind → where, the one to be taken first: adapters are all that was trained, shards have more digits than the
    weights beside them, which ZeRO-3 may have left empty."""
    found: dict[Kind, Path] = {}
    adapter = folder / "lora_adapter" if (folder / "lora_adapter").is_dir() else folder  # as verl writes them
    if has_adapter(adapter):
        found["adapter"] = adapter
    if shards := _deepspeed(folder):
        found["deepspeed"] = shards
    if any(folder.glob("model_world_size_*_rank_*.pt")):
        found["dtensor"] = folder
    for inner in (folder, *sorted(folder.glob("pytorch_model_fsdp_*"))):
        if (inner / ".metadata").is_file():
            found.setdefault("distcp", inner)
    if has_weights(folder, WEIGHTS, BIN):
        found["plain"] = folder
    return found


def _deepspeed(folder: Path) -> Path | None:
    if any(folder.glob("*mp_rank_*_model_states.pt")) or any(folder.glob("*_optim_states.pt")):
        return folder
    if (folder / "latest").is_file():
        try:
            tag = (folder / "latest").read_text().strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{folder / 'latest'} cannot be read: DeepSpeed names its folder there") from error
        shards = folder / tag
        if tag in ("", "..") or shards.parent != folder or not shards.is_dir():
            raise InputError(f"{folder} lacks the folder {tag[:40]!r}, which DeepSpeed's file 'latest' names: copy it")
        return shards
    tagged = [each for each in folder.glob("global_step*") if _deepspeed(each)]
    if len(tagged) > 1:
        raise InputError(
            f"{folder} has {len(tagged)} DeepSpeed folders, and no file 'latest' that says which: give one"
        )
    return tagged[0] if tagged else None


def _step(folder: Path, weights: Path) -> int | None:
    if (step := saved_step(folder)) is not None:
        return step
    names = (folder.name, weights.name, folder.parent.name)
    return next((int(match[1]) for name in names if (match := _STEP.fullmatch(name))), None)


def _best(run: Path, checkpoints: list[Path]) -> Path:
    found = []
    for folder in checkpoints:
        step = checkpoint_step(folder)
        recorded = step in RunFolder(run).evaluation_steps()
        accuracy = RunFolder(run).evaluation(step or 0)["accuracy"] if recorded else None
        if accuracy is not None:
            found.append((accuracy, step, folder))
    if not found:
        raise InputError(
            f"{run} recorded no accuracy at a step that it has a checkpoint of ({checkpoints[0].name} is the last): "
            "name one, or leave out --best"
        )
    return max(found)[2]


_MAKERS: dict[Kind, Callable[[Path], Reader]] = {
    "plain": plain_reader,
    "deepspeed": ZeroReader,
    "dtensor": DTensorReader,
    "distcp": DistcpReader,
}


def reader_of(kind: Kind, folder: Path) -> Reader:
    """The weights of `kind` in `folder`. Raises `InputError`, also when they are read: the files are damaged."""
    return GuardedReader(lambda: _MAKERS[kind](folder), folder)


def adapter_reader(checkpoint: Checkpoint) -> Reader:
    """The adapters' file, or the shards beside it, where ZeRO-3 left it empty.

    Raises:
        InputError: there is neither, or they are damaged.
    """
    whole = None
    if has_weights(checkpoint.weights, ADAPTER):
        whole = SafetensorsReader(checkpoint.weights, ADAPTER)
        if not any(entry.empty for entry in whole.stored().values()):
            return whole
    others = [(kind, folder) for kind, folder in checkpoint.also if kind != "plain"]
    if others:
        return AdapterReader(reader_of(*others[0]))
    if whole is None:
        raise InputError(f"{checkpoint.weights} has adapter_config.json, and no {ADAPTER} beside it: copy it, too")
    return whole
