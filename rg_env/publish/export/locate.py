"""The checkpoint in a folder: its kind, its step, the run that left it, and where its configuration may be."""

import re
from dataclasses import dataclass
from pathlib import Path

from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError
from rg_env.publish.export.weights import BIN, Kind, has_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, saved_step

_STEP = re.compile(r"(?:checkpoint-|global_step_?)(\d+)")
_KINDS = (
    f"a model folder ({WEIGHTS} or {BIN}), adapters (adapter_config.json), DeepSpeed's global_stepN, "
    "model_world_size_N_rank_R.pt, .distcp files with their .metadata, or a run with checkpoint-N"
)


@dataclass(frozen=True)
class Checkpoint:
    """What to export."""

    folder: Path
    """The folder that the export is named after."""
    kind: Kind
    weights: Path
    """The folder with the files of that kind."""
    also: tuple[tuple[Kind, Path], ...] = ()
    """Other kinds that are there too, and where."""
    step: int | None = None
    run: Path | None = None
    """The folder of its run, with the evaluations."""
    companions: tuple[Path, ...] = ()
    """Folders that may have configuration and tokenizer, the nearest first."""


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
        raise InputError(f"{path} is not a run with checkpoint-N to choose the best from: omit --best")
    if checkpoints and not own:
        return _checkpoint(_best(path, checkpoints) if best else checkpoints[0])
    tracker = path / "latest_checkpointed_iteration.txt"  # verl's run
    if not own and tracker.is_file():
        try:
            return _checkpoint(path / f"global_step_{int(tracker.read_text())}")
        except ValueError as error:
            raise InputError(f"{tracker} does not name a step: give the folder global_step_N itself") from error
    return _checkpoint(path)


def _checkpoint(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; a checkpoint is {_KINDS}")
    inner = folder / "actor" if not _kinds_in(folder) and (folder / "actor").is_dir() else folder
    kinds = _kinds_in(inner)
    if not kinds:
        if any(inner.glob("*.distcp")):
            raise InputError(f"{inner} has .distcp files without their .metadata: the checkpoint is incomplete")
        raise InputError(f"{folder} is not a checkpoint: it has none of {_KINDS}")
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
    """Kind -> where, by priority: adapters are all that was trained; shards have more digits than the weights next to
    them, which ZeRO-3 may have left empty."""
    found: dict[Kind, Path] = {}
    adapter = folder / "lora_adapter" if (folder / "lora_adapter").is_dir() else folder  # verl's
    if (adapter / "adapter_config.json").is_file() or has_weights(adapter, ADAPTER):
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
            raise InputError(f"{folder / 'latest'} cannot be read: it names DeepSpeed's folder") from error
        shards = folder / tag
        if tag in ("", "..") or shards.parent != folder or not shards.is_dir():
            raise InputError(f"{folder} lacks the folder {tag[:40]!r}, which DeepSpeed's file 'latest' names: copy it")
        return shards
    tagged = [each for each in folder.glob("global_step*") if _deepspeed(each)]
    if len(tagged) > 1:
        raise InputError(
            f"{folder} has {len(tagged)} DeepSpeed folders, but no file 'latest' that names one: give the folder itself"
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
        step = checkpoint_step(folder) or 0
        recorded = step in RunFolder(run).evaluation_steps()
        accuracy = RunFolder(run).evaluation(step)["accuracy"] if recorded else None
        if accuracy is not None:
            found.append((accuracy, step, folder))
    if not found:
        raise InputError(
            f"{run} recorded no accuracy for any of its checkpoints (the last is {checkpoints[0].name}): name one, or "
            "omit --best"
        )
    return max(found)[2]
