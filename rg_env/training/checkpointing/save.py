"""Checkpoints of a run: written aside, checked and renamed, so that a folder named checkpoint-N is complete.

model*.safetensors, config.json, ...   weights (of LoRA: the adapter), tokenizer
optimizer.pt, or a folder              the optimizer's state: DeepSpeed's folder, or `optimizer` with FSDP2
trainer_state.json                     step and logged metrics
resume.json                            what the order of the rows follows from; a resumed run must agree
curriculum.json                        the levels of a curriculum
scaler.pt                              the loss scaler of fp16
resume_state_N.pt                      random numbers and batch in use of process N
previous_policy_N.safetensors          the reference of `kl_reference="previous"`, of process N

Any failure while one is written, on any process, ends the run on all of them and leaves earlier ones as they were.
A run resumed from a checkpoint continues as if it had never stopped, on a CPU to the bit.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import TrainerState

from rg_env.core.data.manifest import hash_of_rows
from rg_env.core.environment import Environment
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import reason_of
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


def facts(trainer: Any) -> dict[str, Any]:
    """What must be the same in a resumed run, for the rows to come in the same order and the files to fit."""
    names = ("rollouts_per_step", "per_device_train_batch_size", "num_generations", "num_iterations", "seed")
    return {
        "processes": trainer.accelerator.num_processes,
        "sharding": trainer.strategy.sharding,
        **{name: getattr(trainer.args, name) for name in (*names, "shuffle_dataset")},
        "rows": trainer.rows_hash,
        "curriculum": trainer.curriculum.facts() if trainer.curriculum else None,
    }


class Checkpoints:
    """Writes and reads the checkpoints of one trainer."""

    def __init__(self, trainer: Any, folder: str | Path) -> None:
        self._trainer, self.folder = trainer, Path(folder)
        self.saved_at: int | None = None
        """The step of the newest checkpoint in `folder` that this run wrote or continues."""
        self._noted: dict[str, Any] = {}
        self._curriculum = ""

    @property
    def _is_main(self) -> bool:
        return bool(self._trainer.accelerator.is_main_process)

    def note(self) -> None:
        """Resume from here: a step has ended, or the run begins. An interrupt comes in the middle of the next step,
        which has used up random numbers by then and will be made again."""
        trainer = self._trainer
        self._noted = {
            "random": random_numbers(),
            "sampler": trainer.engine.random_state(),
            "batch": trainer.batch_in_use(),
            "tokens": trainer.state.num_input_tokens_seen,
            "skipped": trainer.guard.counts(),
            "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        }
        if trainer.curriculum and self._is_main:  # where it lives
            self._curriculum = trainer.curriculum.state.model_dump_json()

    def save(self) -> Path:
        """Save the trainer's present step as `checkpoint-N`, unless that was done. All processes take part.

        Raises:
            TrainingError: it cannot be written, or the weights are not finite; `StoppedTogether` on several processes.
        """
        trainer, step = self._trainer, self._trainer.state.global_step
        final = RunFolder(self.folder).checkpoint(step)
        if self.saved_at == step:
            return final
        trainer.state.num_input_tokens_seen = self._noted["tokens"]  # without those of an unfinished step
        part = self.folder / ASIDE / final.name
        try:
            self._together(final, lambda: self._begin(part) if self._is_main else None)
            self._together(final, self._check_finite)
            weights = trainer.strategy.state_dict()  # on the main process; gathered by all
            self._together(final, lambda: self._write_model(part, weights) if self._is_main else None)
            self._together(final, lambda: trainer.strategy.save(part))
            self._together(final, lambda: self._write_state(part))
            self._together(final, lambda: self._rename(part, final) if self._is_main else None)
        finally:
            if self._is_main:
                shutil.rmtree(part.parent, ignore_errors=True)
        self.saved_at = step
        return final

    def load(self, checkpoint: Path) -> None:
        """Weights, optimizer, random numbers and step of a checkpoint that `resume.check_fit` has accepted."""
        trainer, process = self._trainer, self._trainer.accelerator.process_index
        trainer.state = TrainerState.load_from_json(str(checkpoint / STATE))
        trainer.state.is_world_process_zero = self._is_main
        trainer.state.is_local_process_zero = trainer.accelerator.is_local_main_process
        trainer.strategy.load(checkpoint)
        if trainer.curriculum and self._is_main:
            trainer.curriculum.start(read_state((checkpoint / CURRICULUM).read_text(encoding="utf-8")))
        if trainer.previous_policy is not None:
            trainer.previous_policy.read(checkpoint, process)
        noted = torch.load(checkpoint / state_file(process), map_location="cpu", weights_only=True)
        set_random_numbers(noted["random"])
        trainer.engine.set_random_state(noted["sampler"])
        trainer.guard.set_counts(noted["skipped"])
        if trainer.scheduler is not None and noted["scheduler"] is not None:
            trainer.scheduler.load_state_dict(noted["scheduler"])
        if noted["batch"] is not None:
            device = trainer.accelerator.device
            trainer.use_batch(
                [{k: None if v is None else v.to(device) for k, v in part.items()} for part in noted["batch"]]
            )
        if checkpoint.parent.resolve() == self.folder.resolve():
            self.saved_at = trainer.state.global_step

    def _begin(self, part: Path) -> None:
        shutil.rmtree(part.parent, ignore_errors=True)  # left by a run that was killed
        part.mkdir(parents=True)

    def _check_finite(self) -> None:
        if not finite_weights(self._trainer.model):
            raise TrainingError("the weights are not finite")

    def _write_model(self, part: Path, weights: dict[str, torch.Tensor]) -> None:
        trainer = self._trainer
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(part, state_dict=weights)
        trainer.processing_class.save_pretrained(part)
        trainer.state.save_to_json(str(part / STATE))

    def _write_state(self, part: Path) -> None:
        trainer, process = self._trainer, self._trainer.accelerator.process_index
        torch.save(self._noted, part / state_file(process))
        if trainer.previous_policy is not None:
            trainer.previous_policy.write(part, process)
        if self._is_main:
            (part / FACTS).write_text(json.dumps(facts(trainer), indent=1) + "\n")
            if self._curriculum:
                (part / CURRICULUM).write_text(self._curriculum + "\n")

    def _rename(self, part: Path, final: Path) -> None:
        if problem := weights_problem(part, self._trainer.accelerator.unwrap_model(self._trainer.model)):
            raise TrainingError(problem)
        if final.exists():  # a damaged one, which resuming passed over
            final.rename(part.parent / "replaced")
        part.rename(final)
        if (limit := self._trainer.args.save_total_limit) is not None:
            for old in RunFolder(self.folder).checkpoints()[limit:]:
                shutil.rmtree(old, ignore_errors=True)

    def _together(self, final: Path, act: Callable[[], Any]) -> None:
        """`act()` on this process; a failure of any of them is one line on all."""
        problem, cause = None, None
        try:
            act()
        except (OSError, SafetensorError, RuntimeError) as error:  # RuntimeError: torch's writer, and TrainingError
            line = f"cannot save {final.name} in {self.folder}: {self._reason(error)}"
            problem, cause = f"{line}; earlier checkpoints are unchanged", error
        agree(self._trainer.accelerator, problem, cause)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        reason = reason_of(error)
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
