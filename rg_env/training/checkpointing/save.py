"""Checkpoints of a run: written aside, checked and renamed, so that a folder named checkpoint-N is whole.

model*.safetensors, config.json, ...   weights (of LoRA: the adapter), tokenizer
optimizer.pt, or a folder              the optimizer's state: DeepSpeed's folder, or `optimizer` with FSDP2
trainer_state.json                     step and logged metrics
resume.json                            what the order of the rows follows from; a resumed run must agree
curriculum.json                        the levels of a curriculum
scaler.pt                              the loss scaler of fp16
resume_state_N.pt                      of process N: random numbers, the batch that more updates are made from
previous_policy_N.safetensors          of process N: the reference of `kl_reference="previous"`

Whatever fails while one is written, on any process, ends the run on all of them and leaves earlier ones as they were.
A run resumed from a checkpoint continues as if it had never stopped, on a CPU to the bit.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import TrainerState

from rg_env.core.environment import Environment
from rg_env.core.run_folder import RunFolder
from rg_env.errors import TrainingError
from rg_env.training.algorithms.policy import held
from rg_env.training.checkpointing.files import weights_problem
from rg_env.training.data.curriculum import read_state
from rg_env.training.distributed import agree

FACTS = "resume.json"
CURRICULUM = "curriculum.json"
STATE = "trainer_state.json"
ASIDE = "checkpoint.part"


def state_file(process: int) -> str:
    """Name of the file with the state of process `process`."""
    return f"resume_state_{process}.pt"


def rows_hash(env: Environment) -> dict[str, str | None]:
    """A hash of the prompts and answers of each split, in order; None for a split without rows."""
    splits = (("training", env.train_rows), ("evaluation", env.eval_rows))
    return {split: hash_of_rows(rows) if rows else None for split, rows in splits}


def hash_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Hex SHA-256 of the prompts and answers of rows, in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row["prompt"], row["answer"]], sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def facts(trainer: Any) -> dict[str, Any]:
    """What must be the same in a resumed run, for the rows to come in the same order and the files to fit."""
    args = trainer.args
    return {
        "processes": trainer.accelerator.num_processes,
        "sharding": trainer.strategy.sharding,
        "rollouts_per_step": args.rollouts_per_step,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "num_generations": args.num_generations,
        "num_iterations": args.num_iterations,
        "seed": args.seed,
        "shuffle_dataset": args.shuffle_dataset,
        "rows": trainer.rows_hash,
        "curriculum": trainer.curriculum.facts() if trainer.curriculum else None,
    }


class ResumePoint:
    """A trainer's random numbers and the batch in use, noted whenever a step ends: an interrupt comes in the middle of
    the next one, which has used up random numbers by then and will be made again."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._noted: dict[str, Any] = {}
        self._curriculum = ""

    def note(self) -> None:
        """The step that ended, or the run that begins, is where a checkpoint resumes."""
        trainer = self._trainer
        self._noted = {
            "random": random_numbers(),
            "sampler": trainer.engine.random_state(),
            "batch": trainer.batch_in_use(),
            "tokens": trainer.state.num_input_tokens_seen,
            "skipped": trainer.guard.counts(),
            "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        }
        if trainer.curriculum and trainer.accelerator.is_main_process:  # where it lives
            self._curriculum = trainer.curriculum.state.model_dump_json()

    def roll_back(self) -> None:
        """Take what an unfinished step has counted off the trainer's state."""
        self._trainer.state.num_input_tokens_seen = self._noted["tokens"]

    def write(self, folder: Path) -> None:
        """This process's part; on the main process also the facts."""
        trainer = self._trainer
        process = trainer.accelerator.process_index
        torch.save(self._noted, folder / state_file(process))
        if trainer.previous_policy is not None:
            trainer.previous_policy.write(folder, process)
        if trainer.accelerator.is_main_process:
            (folder / FACTS).write_text(json.dumps(facts(trainer), indent=1) + "\n")
            if self._curriculum:
                (folder / CURRICULUM).write_text(self._curriculum + "\n")

    def read(self, folder: Path) -> None:
        """Restore this process's part."""
        trainer = self._trainer
        process, device = trainer.accelerator.process_index, trainer.accelerator.device
        if trainer.curriculum and trainer.accelerator.is_main_process:
            trainer.curriculum.start(read_state((folder / CURRICULUM).read_text(encoding="utf-8")))
        if trainer.previous_policy is not None:
            trainer.previous_policy.read(folder, process)
        found = torch.load(folder / state_file(process), map_location="cpu", weights_only=True)
        set_random_numbers(found["random"])
        trainer.engine.set_random_state(found["sampler"])
        trainer.guard.set_counts(found["skipped"])
        if trainer.scheduler is not None and found["scheduler"] is not None:
            trainer.scheduler.load_state_dict(found["scheduler"])
        if found["batch"] is not None:
            batch = [
                {name: None if value is None else value.to(device) for name, value in part.items()}
                for part in found["batch"]
            ]
            trainer.use_batch(batch)


class Checkpoints:
    """Writes and reads the checkpoints of one trainer."""

    def __init__(self, trainer: Any, folder: str | Path) -> None:
        self._trainer, self.folder = trainer, Path(folder)
        self.point = ResumePoint(trainer)
        self.saved_at: int | None = None
        """The step of the newest checkpoint in `folder` that this run wrote or continues."""

    def save(self) -> Path:
        """Save the trainer's present step as `checkpoint-N`, unless that was done. All processes take part.

        Raises:
            TrainingError: it cannot be written, or the weights are not finite; `StoppedTogether` on several processes.
        """
        trainer = self._trainer
        step, main = trainer.state.global_step, trainer.accelerator.is_main_process
        name = f"checkpoint-{step}"
        aside = self.folder / ASIDE
        if self.saved_at == step:
            return self.folder / name
        self.point.roll_back()
        try:
            self._together(name, lambda: self._begin(aside, name) if main else None)
            self._together(name, lambda: self._check_finite())
            self._save_model(aside / name)
            self._together(name, lambda: trainer.strategy.save(aside / name))
            self._together(name, lambda: self.point.write(aside / name))
            self._together(name, lambda: self._rename(aside, name) if main else None)
        finally:
            if main:
                shutil.rmtree(aside, ignore_errors=True)
        self.saved_at = step
        return self.folder / name

    def load(self, checkpoint: Path) -> None:
        """Weights, optimizer, random numbers and step of a checkpoint that `checkpoints.check_fit` has accepted."""
        trainer = self._trainer
        trainer.state = TrainerState.load_from_json(str(checkpoint / STATE))
        trainer.state.is_world_process_zero = trainer.accelerator.is_main_process
        trainer.state.is_local_process_zero = trainer.accelerator.is_local_main_process
        trainer.strategy.load(checkpoint)
        self.point.read(checkpoint)
        if checkpoint.parent.resolve() == self.folder.resolve():
            self.saved_at = trainer.state.global_step

    def _begin(self, aside: Path, name: str) -> None:
        shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
        (aside / name).mkdir(parents=True)

    def _check_finite(self) -> None:
        if not finite_weights(self._trainer.model):
            raise TrainingError("the weights are not finite")

    def _save_model(self, folder: Path) -> None:
        weights = self._trainer.strategy.state_dict()  # on the main process; gathered by all
        main = self._trainer.accelerator.is_main_process
        self._together(folder.name, lambda: self._write_model(folder, weights) if main else None)

    def _write_model(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        trainer = self._trainer
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(
            folder, state_dict=state, safe_serialization=True
        )
        trainer.processing_class.save_pretrained(folder)
        trainer.state.save_to_json(str(folder / STATE))

    def _rename(self, aside: Path, name: str) -> None:
        if problem := weights_problem(aside / name, self._trainer.accelerator.unwrap_model(self._trainer.model)):
            raise TrainingError(problem)
        if (self.folder / name).exists():  # a damaged one, which resuming passed over
            (self.folder / name).rename(aside / "replaced")
        (aside / name).rename(self.folder / name)
        if (limit := self._trainer.args.save_total_limit) is not None:
            for old in RunFolder(self.folder).checkpoints()[limit:]:
                shutil.rmtree(old, ignore_errors=True)

    def _together(self, name: str, act: Callable[[], Any]) -> None:
        """`act()` on this process; what fails on any of them is one line on all."""
        problem, cause = None, None
        try:
            act()
        except (OSError, SafetensorError, RuntimeError) as error:  # RuntimeError: torch's writer, and TrainingError
            problem, cause = self._reason(error), error
        line = f"cannot save {name} in {self.folder}: {problem}; earlier checkpoints are unchanged"
        agree(self._trainer.accelerator, problem and line, cause)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        full = not isinstance(error, TrainingError) and shutil.disk_usage(self.folder).free < 1 << 20
        return f"No space left on device ({reason})" if full else reason


def finite_weights(model: Any) -> bool:
    """Whether all weights that are trained are finite, of shards those of this process."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return all(bool(held(parameter).isfinite().all()) for parameter in trained)


def random_numbers() -> dict[str, Any]:
    """State of python's, numpy's and torch's random numbers, as values that `torch.load(weights_only=True)` reads."""
    numbers: Any = np.random.get_state()
    kind, keys, *rest = numbers
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), *map(float, rest)),
        "torch": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.random.get_rng_state_all()
    return state


def set_random_numbers(state: dict[str, Any]) -> None:
    """Restore what `random_numbers` returned."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    torch.random.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.random.set_rng_state_all(state["cuda"])
