"""Save, validate and load the checkpoints of a run. Each checkpoint is written to a temporary folder, checked and then
renamed, so checkpoint-N is always complete.

model*.safetensors, config.json, ...   weights (with LoRA, only the adapter) and tokenizer
optimizer.pt, or a folder              the optimizer's state; DeepSpeed and FSDP2 write a folder
trainer_state.json                     step and logged metrics
resume.json                            settings that a resumed run must keep, and file sizes
curriculum.json                        the curriculum's state
scaler.pt                              the fp16 loss scaler
resume_state_N.pt                      random state and current batch of process N
previous_policy_N.safetensors          process N's reference for `kl_reference="previous"`

A failure to write a checkpoint on any process ends the run on all processes and leaves earlier checkpoints unchanged. A
run that is resumed from a checkpoint continues as if it had never stopped. On a CPU, the results are bit-identical to
those of an uninterrupted run.

`chosen` selects the checkpoint to resume from, and `check_fit` compares it with the trainer. A checkpoint is trusted
like the code that wrote it: DeepSpeed and torch.distributed.checkpoint unpickle their files, so do not resume from a
checkpoint of someone you do not trust.
"""

import copy
import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, TrainerState

from rg_env.core.data.manifest import check_manifest, hash_of_rows
from rg_env.core.environment import Environment
from rg_env.core.files import make_folder
from rg_env.core.run_folder import RunFolder, checkpoint_step, read_json
from rg_env.core.text import counted, gigabytes, listed, reason_of
from rg_env.errors import InputError, TrainingError
from rg_env.training.algorithms.policy import finite_weights, unwrapped, weights_file
from rg_env.training.checkpointing.files import full_shape, saved_step, stored_parameters, weights_problem
from rg_env.training.collectives import agree
from rg_env.training.curriculum import CurriculumState
from rg_env.training.preflight import AUTO

RESUME = "resume.json"
CURRICULUM = "curriculum.json"
STATE = "trainer_state.json"
ASIDE = "checkpoint.part"
_SIZED = (".safetensors", ".pt", ".distcp")
_SIZED_TOO = (CURRICULUM, "latest", ".metadata", "model.safetensors.index.json")
"""Suffixes and names of the files whose sizes are recorded in a checkpoint and checked when a run is resumed. The
tokenizer, the scripts added by DeepSpeed and `STATE` (whose size varies with the durations in it) are not included."""


def checkpoint_size(model: Any) -> int:
    """Return the approximate size of a checkpoint in bytes: the saved weights, and AdamW's two moments for each trained
    weight."""
    saved = {id(each): each for each in stored_parameters(model).values()}.values()
    trained = [each for each in model.parameters() if each.requires_grad]
    moments = sum(8 * math.prod(full_shape(each)) for each in trained)
    return moments + sum(each.element_size() * math.prod(full_shape(each)) for each in saved)


def state_file(process: int) -> str:
    """Return the name of the file that contains the state of `process`."""
    return f"resume_state_{process}.pt"


def rows_hash(env: Environment) -> dict[str, str | None]:
    """Return, for each split, a hash of its prompts and answers in order, or None if the split has no rows."""
    splits = (("training", env.train_rows), ("evaluation", env.eval_rows))
    return {split: hash_of_rows(rows) if rows else None for split, rows in splits}


def settings_of(trainer: Any) -> dict[str, Any]:
    """Return the settings that a resumed run must keep so that it uses the same rows in the same order and can use the
    checkpoint's weights and optimizer state."""
    args, model = trainer.args, unwrapped(trainer.model)
    adapter = next(iter(getattr(model, "peft_config", {}).values()), None)
    sizes = ("rollouts_per_step", "per_device_train_batch_size", "num_generations", "num_iterations")
    return {
        "processes": trainer.accelerator.num_processes,
        "rows": trainer.rows_hash,
        "curriculum": trainer.curriculum.facts() if trainer.curriculum else None,
        "sharding": trainer.strategy.sharding,
        "trained_parameters": sum(parameter.requires_grad for parameter in model.parameters()),
        **{name: getattr(args, name) for name in sizes},
        "seed": args.seed,
        "shuffle_dataset": args.shuffle_dataset,
        "optim": args.optim.removesuffix("_fused"),
        **{name: getattr(adapter, name, None) for name in ("lora_alpha", "use_rslora", "use_dora")},
    }


class Checkpoints:
    """Writes and reads a trainer's checkpoints."""

    def __init__(self, trainer: Any, folder: str | Path) -> None:
        self._trainer, self.folder, self._is_main = trainer, Path(folder), bool(trainer.accelerator.is_main_process)
        self.saved_at: int | None = None
        """Step of the newest checkpoint in `folder` that this run wrote or was resumed from."""
        self.is_in_use: Callable[[Path], bool] = lambda checkpoint: False
        """Function that reports whether an old checkpoint must not be deleted yet."""
        self._snapshot: dict[str, Any] = {}
        self._curriculum = ""

    def take_snapshot(self) -> None:
        """Record the state that `save` writes. Call this method at the start of the run and at the end of each step: an
        interrupted step has already used random numbers, so it must be repeated from the recorded state."""
        trainer = self._trainer
        self._snapshot = {
            "random": random_numbers(),
            "sampler": trainer.engine.random_state(),
            "batch": trainer.micro_batches,
            "tokens": trainer.state.num_input_tokens_seen,
            "skipped": trainer.guard.counts(),
            "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        }
        if trainer.curriculum and self._is_main:  # the curriculum runs only on the main process
            self._curriculum = trainer.curriculum.state.model_dump_json()

    def save(self) -> Path:
        """Save the trainer's current step as `checkpoint-N`, unless it has already been saved. This is a collective
        operation.

        Raises:
            TrainingError: the checkpoint cannot be written, or the weights are not finite. With several processes, the
                error is a `StoppedTogether`.
        """
        trainer, step = self._trainer, self._trainer.state.global_step
        final = RunFolder(self.folder).checkpoint(step)
        if self.saved_at == step:
            return final
        trainer.state.num_input_tokens_seen = self._snapshot["tokens"]  # the tokens of an unfinished step are excluded
        part = self.folder / ASIDE / final.name
        try:
            with self._together(final):
                if not finite_weights(trainer.model):
                    raise TrainingError("the weights are not finite")
                if self._is_main:
                    self._begin(part)
            # The weights are gathered from all processes, but are complete only on the main process.
            weights = trainer.strategy.state_dict()
            with self._together(final):
                if self._is_main:
                    self._write_model(part, weights)
            with self._together(final):
                trainer.strategy.save(part)
            with self._together(final):
                self._write_state(part)
            with self._together(final):
                if self._is_main:
                    self._rename(part, final)
        finally:
            if self._is_main:
                shutil.rmtree(part.parent, ignore_errors=True)
        self.saved_at = step
        return final

    def load(self, checkpoint: Path) -> None:
        """Restore the weights, optimizer, random state and step from a checkpoint that `check_fit` has
        accepted."""
        trainer, process = self._trainer, self._trainer.accelerator.process_index
        trainer.state = TrainerState.load_from_json(str(checkpoint / STATE))
        trainer.state.is_world_process_zero = self._is_main
        trainer.state.is_local_process_zero = trainer.accelerator.is_local_main_process
        trainer.strategy.load(checkpoint)
        if trainer.curriculum and self._is_main:
            trainer.curriculum.start(CurriculumState(**read_json(checkpoint / CURRICULUM)))
        if trainer.reference is not None:
            trainer.reference.read(checkpoint, process)
        saved = torch.load(checkpoint / state_file(process), map_location="cpu", weights_only=True)
        set_random_numbers(saved["random"])
        trainer.engine.set_random_state(saved["sampler"])
        trainer.guard.set_counts(saved["skipped"])
        if trainer.scheduler is not None and saved["scheduler"] is not None:
            trainer.scheduler.load_state_dict(saved["scheduler"])
        if saved["batch"] is not None:
            device = trainer.accelerator.device
            trainer.micro_batches = [
                {name: None if value is None else value.to(device) for name, value in part.items()}
                for part in saved["batch"]
            ]
        if checkpoint.parent.resolve() == self.folder.resolve():
            self.saved_at = trainer.state.global_step

    def room_problem(self) -> str | None:
        """Return a warning if the disk does not have enough space for a checkpoint, or None if it does."""
        model = unwrapped(self._trainer.model)
        size, free = checkpoint_size(model), shutil.disk_usage(self.folder).free
        if size <= free:
            return None
        return (
            f"warning: a checkpoint needs about {gigabytes(size)}, but {self.folder} has {gigabytes(free)} free: free "
            "some space, or choose another output folder"
        )

    def _begin(self, part: Path) -> None:
        shutil.rmtree(part.parent, ignore_errors=True)  # left by a run that was killed
        make_folder(part.parent)
        part.mkdir()

    def _write_model(self, part: Path, weights: dict[str, torch.Tensor]) -> None:
        trainer = self._trainer
        write_model(part, unwrapped(trainer.model), trainer.processing_class, weights)
        trainer.state.save_to_json(str(part / STATE))

    def _write_state(self, part: Path) -> None:
        trainer, process = self._trainer, self._trainer.accelerator.process_index
        torch.save(self._snapshot, part / state_file(process))
        if trainer.reference is not None:
            trainer.reference.write(part, process)
        if self._is_main and self._curriculum:
            (part / CURRICULUM).write_text(self._curriculum + "\n")

    def _rename(self, part: Path, final: Path) -> None:
        if problem := weights_problem(part, unwrapped(self._trainer.model)):
            raise TrainingError(problem)
        found = [file for file in part.rglob("*") if file.suffix in _SIZED or file.name in _SIZED_TOO]
        files = {file.relative_to(part).as_posix(): file.stat().st_size for file in found if file.is_file()}
        settings = {**settings_of(self._trainer), "files": files}
        (part / RESUME).write_text(json.dumps(settings, indent=1) + "\n")
        if final.exists():  # a damaged checkpoint may have been skipped when the run was resumed
            final.rename(part.parent / "replaced")
        part.rename(final)
        if (limit := self._trainer.args.save_total_limit) is not None:
            for old in RunFolder(self.folder).checkpoints()[limit:]:
                if not self.is_in_use(old):
                    shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _together(self, final: Path) -> Iterator[None]:
        """Raise an error on all processes if any process fails while this context is active."""
        problem, cause = None, None
        try:
            yield
        except Exception as error:  # transformers, torch and safetensors raise various errors
            reason, cause = reason_of(error), error
            is_there = self.folder.is_dir()
            is_full = (
                is_there and not isinstance(error, TrainingError) and shutil.disk_usage(self.folder).free < 1 << 20
            )
            if is_full or "PytorchStreamWriter" in reason:
                reason = "the disk is full, or a quota or file size limit was reached"
            reason = f"{reason}; earlier checkpoints are unchanged" if is_there else "the folder was removed"
            problem = f"cannot save {final.name} in {self.folder}: {reason}"
        agree(self._trainer.accelerator, problem, cause)


def write_model(folder: Path, model: Any, tokenizer: Any, weights: dict[str, torch.Tensor]) -> None:
    """Write a model in transformers' format, with `weights` by their names in memory.

    Generation settings are copied as they are. `save_pretrained` would check them, and refuse those of some published
    models.
    """
    generation = model.generation_config
    try:
        model.generation_config = GenerationConfig()
        model.save_pretrained(folder, state_dict=weights)
    finally:
        model.generation_config = generation
    if not hasattr(model, "peft_config"):
        generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])
    tokenizer.save_pretrained(folder)


def check_savable(model: Any, tokenizer: Any) -> None:
    """Raise `InputError` if a checkpoint of `model` could not be saved, or could not be loaded again. Everything except
    the weights is written, and transformers loads tensors without data that have the names in the file."""
    kind, adapters = type(model).__name__, hasattr(model, "peft_config")
    with tempfile.TemporaryDirectory() as folder:
        try:
            stored = stored_parameters(model)
            if not adapters:
                write_model(Path(folder), model, tokenizer, {})
        except Exception as error:  # transformers can raise any exception
            raise InputError(f"checkpoints of this model ({kind}) cannot be saved: {reason_of(error)}") from error
    if adapters or any(hasattr(each, "ds_id") for each in model.parameters()):  # ZeRO-3 refuses to load onto "meta"
        return
    options = {"config": copy.deepcopy(model.config), "state_dict": stored, "device_map": "meta"}
    _, info = type(model).from_pretrained(None, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    if lost := sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"])):
        raise InputError(
            f"checkpoints of this model ({kind}) could not be loaded again: transformers {transformers.__version__} "
            f"saves it without {listed(lost)}; train adapters (lora), or install another version of transformers"
        )


def random_numbers() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and torch's random number generators (on a GPU machine, also that of this
    process's GPU) in a form that `torch.load` can read with `weights_only=True`."""
    numbers: Any = np.random.get_state()
    kind, keys, *rest = numbers
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), *map(float, rest)),
        "torch": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()  # other GPUs may be hidden when the run is resumed
    return state


def set_random_numbers(state: dict[str, Any]) -> None:
    """Restore a state returned by `random_numbers`."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    torch.random.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def chosen(resume: str | Path, folder: Path) -> Path | None:
    """Return the checkpoint selected by `resume` for a run in `folder`, or None if `resume` is "auto" and there is no
    checkpoint. Print a line for each damaged checkpoint that is skipped.

    Raises:
        InputError: `resume` is not a complete checkpoint, all checkpoints are damaged, or `folder` has newer
            checkpoints, which would conflict with those that the resumed run writes.
    """
    if str(resume) != AUTO:
        path = Path(resume)
        if path.parent.resolve() == folder.resolve():
            newest = RunFolder(folder).last_checkpoint() or path
            if (checkpoint_step(newest) or 0) > (checkpoint_step(path) or 0):
                raise InputError(
                    f"{folder} has checkpoints after {path.name}: resume from the newest, {newest.name} "
                    f"(--resume {AUTO}), or use another output folder"
                )
        if problem := _incomplete(path):
            raise InputError(f"cannot resume from {path}: {problem}")
        return path
    passed_over = ""
    for path in RunFolder(folder).checkpoints():
        if (problem := _incomplete(path)) is None:
            return path
        print(f"skipping the damaged checkpoint {path}: {problem}", flush=True)
        passed_over = passed_over or f"{path}: {problem}"
    if passed_over:  # starting over would delete files that may still be recoverable
        raise InputError(f"{folder} has no complete checkpoint ({passed_over}): use a new output folder")
    return None


def check_fit(trainer: Any, path: Path) -> None:
    """Raise `InputError` unless `trainer` can continue from the checkpoint `path` as if the run had never stopped."""
    theirs, ours = read_json(path / RESUME), settings_of(trainer)
    differing = {name: theirs.get(name) for name, value in ours.items() if theirs.get(name) != value}

    def refuse(reason: str) -> None:
        raise InputError(f"cannot resume from {path}: {reason}")

    if made_by := differing.get("processes"):
        refuse(
            f"it was saved by {counted(made_by, 'process')}, not {ours['processes']}: set the number of processes to "
            f"{made_by}"
        )
    if problem := weights_problem(path, unwrapped(trainer.model)):
        refuse(f"its weights do not match the model because {problem}")
    if rows := differing.get("rows"):
        run, own_rows = RunFolder(path.parent), trainer.env.manifest
        if own_rows is not None and run.manifest().get("rows"):
            check_manifest(run.manifest_file, own_rows)  # the error names the difference
        split = next(name for name, value in ours["rows"].items() if rows.get(name) != value)
        refuse(f"its {split} rows are different: use the same tasks, data and seed")
    if "curriculum" in differing:
        refuse(
            "its curriculum is different, or only one of the two runs has a curriculum: use the same curriculum and "
            "seed"
        )
    for name, there in differing.items():
        refuse(f"it was saved with {name}={there}, but this run has {ours[name]}: use the same value")
    if trainer.reference is not None and trainer.reference.previous and weights_file(0) not in theirs["files"]:
        refuse("it was saved without kl_reference='previous': use the same kl_reference")


def final_results(run: RunFolder, step: int) -> dict[str, Any] | None:
    """Return the results of a run that finished at `step`, or None if the run failed, was interrupted, or was killed
    before it could write its results."""
    results = run.results() or {}
    ended = results.get("steps") == step and not (results["interrupted"] or results["error"])
    return results if ended else None


def _incomplete(path: Path) -> str | None:
    """Return the reason `path` is not a complete checkpoint, or None if it has a step and all files in full size."""
    if not (path / RESUME).is_file():
        return f"{RESUME} is missing: pass the checkpoint-N folder of a run"
    try:
        files, step = read_json(path / RESUME)["files"], saved_step(path)
    except InputError as error:
        return str(error)
    if step is None:
        return f"{STATE} is missing, or does not contain a step: copy it again"
    for name, size in files.items():
        now = (path / name).stat().st_size if (path / name).is_file() else 0
        if now != size:
            return f"{name} is missing or damaged (it has {now:,} of {size:,} bytes): copy it again"
    return None
