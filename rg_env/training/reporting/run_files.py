"""The output folder of a run: where it may be, and what is written into it.

config.yaml           what was asked for, resolved; config_from_step_N.yaml: the same, of a run that went on from there
arguments.yaml        for runs from a config, what it came to: all training arguments, prompt, rewards
manifest.json         versions, machine, and which rows it was trained and evaluated on
metrics.jsonl         one line a step, and one an evaluation
rollouts.jsonl        some training rollouts of each step
eval_results/         eval_step_N.json: scores and rollouts of each evaluation, step 0 first
tensorboard/, wandb/  what these services keep, if asked for
checkpoint-N/         weights, tokenizer, optimizer state
train_results.json    before and after
reward_curve.png      the learning curve

Locks on what DeepSpeed compiles at its first use (`torch.utils.cpp_extension`): a process that is killed meanwhile
leaves its lock behind, and every later run would wait for it without end, and without a word.
"""

import contextlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.distributed_env import say, world_size
from rg_env.core.output_folders import cut, free_folder, write_aside
from rg_env.errors import OutputFolderError

_PACKAGES = ("rg-env", "verifiers", "reasoning-gym", "torch", "transformers", "trl", "accelerate", "deepspeed", "vllm")


def run_name(tasks: Sequence[str], label: str) -> str:
    """What a run on `tasks` is called: by the first three, and how many more there are."""
    more = f"-and-{len(tasks) - 3}-more" if len(tasks) > 3 else ""
    return cut(f"{cut('+'.join(tasks[:3]), 60)}{more}-{label}")


@contextmanager
def nothing_left_of(folder: str | Path) -> Iterator[None]:
    """Within: an error takes the folder away again, and those above it, if they were made since and hold nothing."""
    path = Path(folder)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for each in missing:
                each.rmdir()
        raise


def run_folder(output_dir: str | Path | None, name: str, resume: str | Path | None = None) -> Path:
    """The folder a run may write to, checked but not yet made. None: a fresh one under `outputs/`.

    Where several processes train, the first one chooses and checks for all.

    Args:
        resume: the checkpoint that the run goes on from, or "auto": then `output_dir` is the folder of that run, by
            default the one that the checkpoint is in. Another one must be as for a new run.

    Raises:
        OutputFolderError: it holds files already, or cannot be written; there is no telling which run is to go on.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        clear_stale_locks()  # before processes meet, for which DeepSpeed compiles
    if world_size() == 1:
        return _checked_folder(output_dir, name, resume)
    from accelerate.utils import broadcast_object_list

    from rg_env.inference.models import processes

    outcome: list[Any] = [None]
    if processes().is_main_process:
        try:
            outcome = [_checked_folder(output_dir, name, resume)]
        except OutputFolderError as error:
            outcome = [error]
    broadcast_object_list(outcome)
    if isinstance(outcome[0], OutputFolderError):
        raise outcome[0]
    folder: Path = outcome[0]
    return folder


def _checked_folder(output_dir: str | Path | None, name: str, resume: str | Path | None = None) -> Path:
    goes_on = False
    if resume is not None:
        own = None if str(resume) == "auto" else Path(resume).parent
        output_dir = own if output_dir is None else output_dir
        if output_dir is None:
            raise OutputFolderError("--resume auto needs an output folder: that of the run that is to go on")
        goes_on = own is None or Path(output_dir).absolute() == own.absolute()
    return free_folder(output_dir, name, "choose another output folder", resume="--resume auto", goes_on=goes_on)


class RunFiles:
    """Writes the files of one run: whole files aside and then renamed, so that none is ever half there."""

    def __init__(self, folder: Path):
        try:
            (folder / "eval_results").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputFolderError(f"cannot write to {folder}: {error.strerror}") from error
        self.folder = folder

    def write_config(self, settings: dict[str, Any], name: str = "config.yaml") -> None:
        self._write(name, to_yaml(_plain(settings)))

    def write_manifest(
        self,
        rows: dict[str, Any] | None,
        evaluation: Sequence[dict[str, Any]] = (),
        hardware: dict[str, Any] | None = None,
    ) -> None:
        """`rows`: the manifest of the training environment; `evaluation`: of others that are evaluated on; `hardware`:
        what it runs on (`resources.hardware`)."""
        self.write_json(
            "manifest.json",
            {
                "versions": {name: v for name in _PACKAGES if (v := _version(name))},
                "python": platform.python_version(),
                "platform": platform.platform(),
                **({"hardware": hardware} if hardware else {}),
                "rows": rows,
                **({"evaluation_rows": list(evaluation)} if evaluation else {}),
            },
        )

    def evaluations(self, until: float = math.inf) -> list[dict[str, Any]]:
        """The evaluations until that step that the run has left in `eval_results`, in order."""
        files = (self.folder / "eval_results").glob("eval_step_*.json")
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        return sorted((each for each in found if each["step"] <= until), key=lambda each: each["step"])

    def write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        write_aside(self.folder / name, text)

    def append(self, name: str, records: list[dict[str, Any]]) -> None:
        """Append one JSON line a record."""
        with (self.folder / name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(
                json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records
            )

    def cut_after(self, step: int) -> None:
        """Take out what was written after `step`, and sums over a run that ended: what goes on writes them anew."""
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            file = self.folder / name
            if file.exists():
                with file.open(encoding="utf-8") as lines:  # not splitlines(): model text may contain more line ends
                    kept = [line for line in lines if _step_of(line) <= step]
                self._write(name, "".join(kept))
        for evaluation in (self.folder / "eval_results").glob("eval_step_*.json"):
            if int(evaluation.stem.split("_")[-1]) > step:
                evaluation.unlink()

    def discard(self, folders: Sequence[Path] = ()) -> None:
        """Take back what was written for a run that never began, and these folders."""
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("config.yaml", "arguments.yaml", "manifest.json"):
            (self.folder / name).unlink(missing_ok=True)
        for folder in (self.folder / "eval_results", self.folder):
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()


def _step_of(line: str) -> float:
    try:
        record = json.loads(line)
        return math.inf if "train_runtime" in record else int(record["step"])
    except (ValueError, KeyError, TypeError):  # broken off, when the run was killed or the disk was full
        return math.inf


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """`value` as JSON and YAML know it. NaN and infinity become None: neither format has them."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


STALE_S = 600.0
"""A lock is left over where nothing beside it has changed for so long: compiling takes a minute or two."""


def extensions_folder() -> Path:
    """Where torch keeps compiled extensions."""
    if (given := os.environ.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def clear_stale_locks() -> None:
    """Take away locks that were left over, and say so. All processes of a run may call it."""
    now = time.time()
    root = extensions_folder()
    with contextlib.suppress(OSError):  # no such folder, or one that may not be read: then torch will tell
        for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")]:
            with contextlib.suppress(OSError):  # another process was faster
                changed = max(file.stat().st_mtime for file in lock.parent.iterdir())
                if now - changed > STALE_S:
                    lock.unlink()
                    say(f"Removed {lock}: left over from a process that was killed while it compiled.")
