"""Selection of the checkpoint to resume from, and checks that a trainer can resume from it.

Nothing in a checkpoint is executed. Pickles are read by torch's restricted reader. Those that DeepSpeed and
torch.distributed.checkpoint load without it are checked for classes that they do not write.
"""

from pathlib import Path
from typing import Any

from torch.serialization import get_unsafe_globals_in_checkpoint

from rg_env.core.data.manifest import check_manifest
from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.core.text import counted
from rg_env.errors import InputError
from rg_env.training.algorithms.policy import weights_file
from rg_env.training.checkpointing.checkpoints import FACTS, STATE, Facts, read_curriculum
from rg_env.training.checkpointing.files import saved_step, weights_problem
from rg_env.training.checkpointing.pickles import DEEPSPEED_TYPES, non_tensors
from rg_env.training.preflight import AUTO
from rg_env.training.strategy import OPTIMIZER_FOLDER


def chosen(resume: str | Path, folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint selected by `resume` for a run in `folder`, and lines about skipped damaged checkpoints.

    Raises:
        InputError: `resume` is not a checkpoint, or `folder` has newer checkpoints, which would conflict with new ones.
    """
    if str(resume) != AUTO:
        path = Path(resume)
        if path.parent.resolve() == folder.resolve():
            newest = RunFolder(folder).last_checkpoint() or path
            if (checkpoint_step(newest) or 0) > (checkpoint_step(path) or 0):
                raise InputError(
                    f"{folder} has checkpoints after {path.name}, {newest.name} the newest: resume from that one "
                    f"(--resume {AUTO}), or use another output folder"
                )
        if problem := _damage(path):
            raise InputError(f"cannot resume from {path}: {problem}")
        return path, []
    passed_over: list[str] = []
    for path in RunFolder(folder).checkpoints():
        problem = _damage(path)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def check_fit(trainer: Any, path: Path) -> None:
    """Raise `InputError` unless `trainer` can continue from the checkpoint `path` as if it had never stopped."""
    theirs, ours = Facts.read(path), Facts.of(trainer)

    def refuse(reason: str) -> None:
        raise InputError(f"cannot resume from {path}: {reason}")

    if theirs.processes != ours.processes:
        refuse(f"it was made by {counted(theirs.processes, 'process')}, not {ours.processes}: start {theirs.processes}")
    if problem := weights_problem(path, trainer.accelerator.unwrap_model(trainer.model)):
        refuse(f"it is of another model: {problem}")
    if theirs.rows != ours.rows:
        manifest, own_rows = RunFolder(path.parent), trainer.env.manifest
        if own_rows is not None and manifest.manifest().get("rows"):
            check_manifest(manifest.manifest_file, own_rows)  # which names the difference
        split = next(name for name, value in ours.rows.items() if theirs.rows.get(name) != value)
        refuse(f"its {split} rows are different: use the tasks, data and seed of that run")
    if theirs.curriculum != ours.curriculum:
        refuse("its curriculum is different, or one of the two has none: use the same curriculum, tasks and seed")
    for name, value in ours.settings().items():
        if (there := theirs.settings()[name]) != value:
            refuse(f"it was made with {name}={there}, but here it is {value}: use the same value")
    if trainer.previous_policy and weights_file(0) not in theirs.files:
        refuse("it was saved without kl_reference='previous'")


def final_results(run: RunFolder, step: int) -> dict[str, Any] | None:
    """The results of a run that ended after `step`; None if it was killed in its last evaluation."""
    results = run.results() or {}
    ended = results.get("steps") == step and not (results["interrupted"] or results["error"])
    return results if ended else None


def _damage(path: Path) -> str | None:
    """Why a folder is not a complete checkpoint that is safe to load; None if it is."""
    if not path.is_dir():
        return "there is no such folder: pass a folder checkpoint-N of a run"
    if not (path / FACTS).is_file():
        return f"{FACTS} is missing: pass a folder checkpoint-N of a run"
    try:
        facts = Facts.read(path)
        if saved_step(path) is None:
            return f"{STATE} is missing, or has no step"
        for name, size in facts.files.items():
            if not (path / name).is_file():
                return f"{name} is missing: copy it again"
            if (now := (path / name).stat().st_size) != size:
                return f"{name} is truncated or damaged: it has {now:,} of {size:,} bytes"
        if facts.curriculum is not None:
            read_curriculum(path)
        if facts.sharding == "fsdp2" and (objects := non_tensors(path / OPTIMIZER_FOLDER)):
            return f"{OPTIMIZER_FOLDER} contains {objects[0]}, which is not a tensor; it was not executed"
    except InputError as error:
        return str(error)
    if (path / "latest").is_file() and (path / (path / "latest").read_text().strip()).parent != path:
        return "latest names a folder elsewhere"  # DeepSpeed would load it
    for file in sorted(path.rglob("*.pt")):
        here = file.relative_to(path)
        try:
            strange = set(get_unsafe_globals_in_checkpoint(file)) - DEEPSPEED_TYPES
        except Exception:  # a damaged file can raise any error
            return f"{here} is truncated or damaged: copy it again"
        if strange:
            return f"{here} contains {min(strange)}, which no checkpoint needs; it was not executed"
    return None
