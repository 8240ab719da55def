"""A whole run: evaluate, train, evaluate again, and leave everything in the output folder.

results = train(trainer, settings={"task": "leg_counting"})
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from rg_env.evaluation.plots import plot_run
from rg_env.training.output import RunFiles
from rg_env.training.policy import TINY
from rg_env.training.recorder import Recorder
from rg_env.training.summary import print_summary
from rg_env.training.tiny import POLICY_DIR
from rg_env.training.trainer import GRPOTrainer


def train(
    trainer: GRPOTrainer, *, settings: dict[str, Any] | None = None, eval_every: int | None = None
) -> dict[str, Any]:
    """Train, with an evaluation on the environment's frozen problems before, every `eval_every` steps, and after.

    On Ctrl-C or SIGTERM the weights and the results so far are saved, and `interrupted` is true in the results.

    Args:
        trainer: ready to train; `trainer.args.output_dir` is where the files go (see `output`).
        settings: what else belongs into `config.yaml`.
        eval_every: steps between evaluations; default: a fifth of the run.

    Returns:
        What `train_results.json` holds.
    """
    files = RunFiles(Path(trainer.args.output_dir))
    main = trainer.accelerator.is_main_process
    if main:
        files.write_config({**(settings or {}), "training": trainer.args.to_dict()})
        files.write_manifest(getattr(trainer.env, "manifest", None))
    recorder = Recorder(trainer, files, eval_every or max(1, trainer.args.max_steps // 5))
    trainer.add_callback(recorder)
    trainer.remove_callback(PrinterCallback)  # the recorder shows the progress
    start = time.monotonic()
    interrupted = False
    with _interruptible(trainer):
        try:
            trainer.train()
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - start
    save_checkpoint(trainer)
    if not main:
        return {}
    before = recorder.evaluations[0] if recorder.evaluations else None
    after = recorder.evaluations[-1] if len(recorder.evaluations) > 1 else None
    name = trainer._get_model_name()
    results = {
        "model": TINY if name == str(POLICY_DIR) else name,
        "engine": "embedded" if trainer.engine else "vllm",
        "steps": trainer.state.global_step,
        "seconds": round(seconds, 2),
        "interrupted": interrupted,
        "eval_before": before.summary() if before else None,
        "eval_after": after.summary() if after else None,
    }
    files.write_json("train_results.json", results)
    plot_run(files.folder)
    print_summary(files.folder, results, before, after)
    return results


def save_checkpoint(trainer: GRPOTrainer) -> Path:
    """Save weights, tokenizer, optimizer and trainer state as `checkpoint-N`, unless that was done at this step."""
    folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    if not folder.exists():
        trainer._save_checkpoint(trainer.model, trial=None)
    return folder


@contextmanager
def _interruptible(trainer: GRPOTrainer) -> Iterator[None]:
    """Within: SIGINT and SIGTERM raise `KeyboardInterrupt` in the main thread, but never in the middle of an update."""
    guard = _UpdateGuard()
    trainer.add_callback(guard)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, guard.interrupt) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        trainer.remove_callback(guard)


class _UpdateGuard(TrainerCallback):
    """Puts an interrupt off while the optimizer writes weights, until the step is counted."""

    def __init__(self) -> None:
        self._updating = self._waiting = False

    def interrupt(self, *_: Any) -> None:
        if self._updating:
            self._waiting = True
        else:
            raise KeyboardInterrupt

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._updating = True

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._updating = False
        if self._waiting:
            raise KeyboardInterrupt
