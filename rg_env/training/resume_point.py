"""What a checkpoint needs besides what transformers saves, so that a run goes on as if it had never stopped.

`resume.json`          what the order of the rows follows from, to be the same in the run that goes on
`curriculum.json`      the levels of a curriculum, if there is one, and what they depend on
`resume_state_N.pt`    of process N: the sampler's random numbers, the batch that more updates are to be made from, what
                       was measured since the last log (with `logging_steps` above 1)
`previous_policy_N.safetensors`   of process N: what `kl_reference="previous"` compares with

All of it is noted when a step ends: an interrupt comes in the middle of the next one, whose rollouts have used up
random numbers and counted tokens, and will be made again.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from verifiers import Environment

from rg_env.training.curriculum import read_state

FACTS = "resume.json"
CURRICULUM = "curriculum.json"


def state_file(process: int) -> str:
    return f"resume_state_{process}.pt"


def rows_hash(env: Environment) -> dict[str, str | None]:
    """A hash of the prompts and answers of each split, in order; None where there is no such split."""
    splits = (("training", env.dataset), ("evaluation", env.eval_dataset))
    return {split: None if dataset is None else dataset_hash(dataset) for split, dataset in splits}


def dataset_hash(dataset: Any) -> str:
    """Hex SHA-256 of the prompts and answers of a dataset, in order."""
    digest = hashlib.sha256()
    names = [name for name in ("prompt", "answer") if name in dataset.column_names]
    for row in zip(*(dataset[name] for name in names), strict=True):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def facts(trainer: Any) -> dict[str, Any]:
    """What has to be the same for the rows to come in the same order, and for the files to fit."""
    args, accelerator = trainer.args, trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    return {
        "processes": accelerator.num_processes,
        "zero_stage": plugin.zero_stage if plugin else None,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "num_generations": args.num_generations,
        "num_iterations": args.num_iterations,
        "seed": args.seed,
        "shuffle_dataset": args.shuffle_dataset,
        "rows": trainer.rows_hash,
        "curriculum": trainer.curriculum.facts() if trainer.curriculum else None,
    }


class ResumePoint(TrainerCallback):
    """Notes a trainer's random numbers and counts when a step ends, writes them, and takes them up again."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._random: dict[str, Any] | None = None
        self._noted: dict[str, Any] = {}
        self._curriculum = ""
        self._unlogged: tuple[Any, dict[str, list[float]]] = (0.0, {})
        self._tokens = 0
        self._loaded: dict[str, Any] | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._random = None
        metrics = self._trainer._metrics["train"]
        metrics.clear()  # those of a step that was interrupted
        self._trainer.unlogged_loss = self._trainer.carried_loss = 0.0
        if self._loaded is not None:
            metrics.update(self._loaded["metrics"])
            self._trainer.carried_loss = self._loaded["loss"]
            self._trainer._globalstep_last_logged = self._loaded["logged_at"]
            self._trainer._total_loss_scalar = self._loaded["total_loss"]  # else the final mean is of this part only
            self._trainer.sampler.set_random_state(self._loaded["sampler"])
            self._loaded = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        if self._random is None:
            self._note()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._note()

    def _note(self) -> None:
        trainer = self._trainer
        self._random = _random_numbers()
        self._tokens = trainer.state.num_input_tokens_seen
        in_use = trainer._step % (trainer.gradient_accumulation_steps * trainer.num_iterations) != 0
        batch = trainer._buffered_inputs if in_use else None
        self._noted = {"sampler": trainer.sampler.random_state(), "batch": batch}
        if trainer.curriculum and trainer.accelerator.is_main_process:  # where it lives
            self._curriculum = trainer.curriculum.state.model_dump_json()
        metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        self._unlogged = trainer.unlogged_loss + trainer.carried_loss, metrics

    @contextmanager
    def at_step_end(self) -> Iterator[None]:
        """Within: python's, numpy's and torch's random numbers are those of the end of the last step."""
        now = _random_numbers()
        _set_random_numbers(self._random or now)
        try:
            yield
        finally:
            _set_random_numbers(now)

    def roll_back_counts(self) -> None:
        """Take what an unfinished step has counted off the trainer's state."""
        if self._random is not None:
            self._trainer.state.num_input_tokens_seen = self._tokens

    def write(self, folder: Path) -> None:
        """This process's part; on the main process also the facts."""
        accelerator, logged_at = self._trainer.accelerator, self._trainer._globalstep_last_logged
        loss, metrics = self._unlogged if logged_at < self._trainer.state.global_step else (0.0, {})
        state = {
            **self._noted,
            "total_loss": float(self._trainer._total_loss_scalar),
            "logged_at": logged_at,
            "loss": float(loss),
            "metrics": metrics,
        }
        torch.save(state, folder / state_file(accelerator.process_index))
        if self._trainer.previous_policy is not None:
            self._trainer.previous_policy.write(folder, accelerator.process_index)
        if accelerator.is_main_process:
            (folder / FACTS).write_text(json.dumps(facts(self._trainer), indent=1) + "\n")
            if self._curriculum:
                (folder / CURRICULUM).write_text(self._curriculum + "\n")

    def read(self, folder: Path) -> list[dict[str, Any]] | None:
        """Take up this process's part when training begins; the batch that is still in use, if there is one."""
        if self._trainer.curriculum and self._trainer.accelerator.is_main_process:
            self._trainer.curriculum.start(read_state((folder / CURRICULUM).read_text(encoding="utf-8")))
        if self._trainer.previous_policy is not None:
            self._trainer.previous_policy.read(folder, self._trainer.accelerator.process_index)
        device = self._trainer.accelerator.device
        file = folder / state_file(self._trainer.accelerator.process_index)
        self._loaded = torch.load(file, map_location="cpu", weights_only=True)
        batch: list[dict[str, Any]] | None = self._loaded["batch"]
        if batch is None:
            return None
        return [{name: None if value is None else value.to(device) for name, value in part.items()} for part in batch]


def _random_numbers() -> dict[str, Any]:
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.random.get_rng_state_all()
    return state


def _set_random_numbers(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.random.set_rng_state_all(state["cuda"])
