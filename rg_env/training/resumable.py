"""The part of the trainer that saves checkpoints and goes on from them: verifiers' trainer, resumable.

A checkpoint is written aside, checked, and renamed: a folder named checkpoint-N is whole. Whatever fails on the way, on
whichever process, ends the run on all of them, and leaves the checkpoints before it as they were.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME, TrainerState
from verifiers import Environment
from verifiers.trainers import GRPOTrainer as VerifiersGRPOTrainer

from rg_env.errors import InputError, TrainingError
from rg_env.training.arguments import GRPOConfig
from rg_env.training.collective import agree, same_everywhere
from rg_env.training.curriculum import Curriculum
from rg_env.training.order import BatchOrder, OrderedLoader
from rg_env.training.resume_point import ResumePoint, rows_hash
from rg_env.training.saved_weights import weights_problem

Columns = tuple[list[Any], list[Any], list[Any], list[Any]]
"""Prompts, answers, tasks and infos."""


def _columns(rows: Sequence[dict[str, Any]]) -> Columns:
    columns = [[row[name] for row in rows] for name in ("prompt", "answer", "task", "info")]
    return columns[0], columns[1], columns[2], columns[3]


def check_start(env: Environment, args: GRPOConfig) -> dict[str, str | None]:
    """The hashes of the rows, the same on all processes.

    Raises:
        InputError: what would be saved could not be loaded; `StoppedTogether`: the processes have other rows.
    """
    if not args.save_safetensors:
        raise InputError("save_safetensors=False writes weights that nothing here reads: leave it on")
    plugin = args.deepspeed_plugin
    if plugin and plugin.zero_stage == 3 and not plugin.zero3_save_16bit_model:
        raise InputError(
            "the accelerate configuration has zero3_save_16bit_model off, with which ZeRO-3 saves empty weights: "
            "set zero3_save_16bit_model: true in deepspeed_config, as configs/zero3.yaml does"
        )
    hashes = rows_hash(env)
    same_everywhere(
        args.distributed_state,
        json.dumps(hashes),
        "the processes do not train on the same rows: each must build them from the same data and seed",
    )
    return hashes


class ResumableTrainer(VerifiersGRPOTrainer):
    """Saves and goes on. Subclasses set `sampler`, and call `check_start` before that and `_can_resume` after.

    Raises:
        InputError: what is saved could not be loaded; `StoppedTogether`: the processes have other rows.
    """

    sampler: Any

    def _can_resume(self, curriculum: Curriculum | None = None) -> None:
        self.curriculum = curriculum
        self._resume_point = ResumePoint(self)
        self.add_callback(self._resume_point)
        self._step = self._next_batch_id = 0
        self._buffered_inputs: list[dict[str, Any]] | None = None
        self._saving_aside: Path | None = None
        self._failed_write: Exception | None = None
        self.unlogged_loss: torch.Tensor | float = 0.0
        """Sum over the passes since the last log, on this process."""
        self.carried_loss = 0.0
        """That of a checkpoint: the part that the next pass is to add to its own."""

    def _noting_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """What a pass reports to transformers' sum: its loss `()`, and what the passes before the checkpoint had."""
        loss, self.carried_loss = loss + self.carried_loss, 0.0
        self.unlogged_loss = self.unlogged_loss + loss
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if "loss" in logs:
            self.unlogged_loss = 0.0

    def get_train_dataloader(self) -> OrderedLoader:
        """Rows in an order that is known beforehand; see `order`."""
        processes = self.accelerator.num_processes
        self._order = BatchOrder(
            len(self.train_dataset),
            rollouts=self._train_batch_size * self.gradient_accumulation_steps * processes,
            num_generations=self.num_generations,
            passes=self.gradient_accumulation_steps * self.num_iterations,
            processes=processes,
            process=self.accelerator.process_index,
            seed=self.args.seed if self.shuffle_dataset else None,
        )
        return OrderedLoader(self.train_dataset, self._order)

    def _gather_batch_data(self, batch_offset: int = 0) -> Columns:
        """Prompts, answers, tasks and infos of all processes, of the batch so many after the present one."""
        number = self._step // (self.gradient_accumulation_steps * self.num_iterations) + batch_offset
        rows = [self.train_dataset[row] for row in self._order.batch(number)]
        if self.curriculum is not None:
            put = self.curriculum.replace(number, rows[:: self.num_generations])
            rows = [row for row in put for _ in range(self.num_generations)]
        return _columns(rows)

    def _more_batch_data(self, number: int, round_: int, prompts: int) -> Columns:
        """As `_gather_batch_data`, of so many prompts besides those of batch `number`, other ones each round."""
        rows = self._order.more(number, round_, prompts)
        return _columns([self.train_dataset[row] for row in rows for _ in range(self.num_generations)])

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        # Passes and batches are counted from the run's beginning; an interrupted loop may have left some behind.
        checkpoint = kwargs.get("resume_from_checkpoint")
        self._step = self._next_batch_id = 0
        self._buffered_inputs = None
        if self.curriculum is not None:
            self.curriculum.start()
        if checkpoint is not None:
            step = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME)).global_step
            self._step = step * self.gradient_accumulation_steps
            self._buffered_inputs = self._resume_point.read(Path(checkpoint))
            under_way = self._buffered_inputs is not None
            batch = self._step // (self.gradient_accumulation_steps * self.num_iterations)
            self._next_batch_id = batch + int(under_way)
        return super()._inner_training_loop(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        self._saving_aside = aside = folder / "checkpoint.part"
        main = self.args.should_save
        try:
            with self._failures_told(name):
                if main:
                    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
            with self._failures_told(name):
                self._failed_write = None
                self._resume_point.roll_back_counts()
                with self._deepspeed_guarded():
                    super()._save_checkpoint(model, trial)
                if self._failed_write is not None:
                    raise self._failed_write
                self._resume_point.write(aside / name)
            with self._failures_told(name):
                if main:
                    if problem := weights_problem(aside / name, self.accelerator.unwrap_model(self.model)):
                        raise TrainingError(problem)
                    if (folder / name).exists():  # one that is damaged: resuming passed it over
                        (folder / name).rename(aside / "replaced")
                    (aside / name).rename(folder / name)
                    self._rotate_checkpoints(use_mtime=False, output_dir=str(folder))
        finally:
            if main:
                shutil.rmtree(aside, ignore_errors=True)
            self._saving_aside = None

    @contextmanager
    def _failures_told(self, name: str) -> Iterator[None]:
        """Within: what cannot be written, on any process, is one line on all of them."""
        problem, cause = None, None
        try:
            yield
        except (OSError, SafetensorError, RuntimeError) as error:  # RuntimeError: torch's writer, and TrainingError
            problem, cause = self._reason(error), error
        agree(
            self.accelerator,
            problem
            and f"cannot save {name} in {self.args.output_dir}: {problem}; earlier checkpoints are as they were",
            cause,
        )

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        full = not isinstance(error, TrainingError) and shutil.disk_usage(self.args.output_dir).free < 1 << 20
        return f"No space left on device ({reason})" if full else reason

    def _guarded(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """`write`, but a failure is only noted: the other processes are on their way to a barrier behind it."""

        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return write(*args, **kwargs)
            except (OSError, SafetensorError, RuntimeError) as error:
                self._failed_write = self._failed_write or error
                return None

        return attempt

    @contextmanager
    def _deepspeed_guarded(self) -> Iterator[None]:
        engine = getattr(self.model_wrapped, "checkpoint_engine", None) if self.is_deepspeed_enabled else None
        if engine is not None:
            engine.save = self._guarded(engine.save)
        try:
            yield
        finally:
            if engine is not None:
                del engine.save

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self._guarded(super()._save)(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        with self._resume_point.at_step_end():
            self._guarded(super()._save_rng_state)(output_dir)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving_aside or super()._get_output_dir(trial))
