"""Collective operations across training processes. An error on one process never leaves other processes waiting."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, gather_object

from rg_env.core.processes import print_once, world_size
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError, RGEnvError, StoppedTogether, TrainingError, from_interrupt

T = TypeVar("T")


def on_main(accelerator: Accelerator | PartialState, act: Callable[[], T]) -> T:
    """Call `act()` on the main process and return its result on all processes.

    Raises:
        StoppedTogether: on all processes, with the message of the error raised by `act()`. If there is only one
            process, the original error is raised.
    """
    if accelerator.num_processes == 1:
        return act()
    message: list[Any] = [None, None, None]
    error: BaseException | None = None
    if accelerator.is_main_process:
        try:
            message[0] = act()
        except (Exception, KeyboardInterrupt) as caught:
            error = caught
            text = "interrupted" if from_interrupt(caught) else str(caught) or type(caught).__name__
            message = [None, text, caught.exit_code if isinstance(caught, RGEnvError) else 1]
    broadcast_object_list(message, from_process=0)
    result, text, exit_code = message
    if text is not None:
        raise StoppedTogether(text, exit_code) from error
    return result


def same_everywhere(processes: Accelerator | PartialState, value: str, complaint: str) -> None:
    """Raise `StoppedTogether` on all processes, with the exit code of `InputError`, unless all processes have the same
    `value`."""
    if processes.num_processes == 1:
        return
    values = gather_object([value])
    if others := [rank for rank, other in enumerate(values) if other != values[0]]:
        raise StoppedTogether(f"{complaint}: process {others[0]} differs from process 0", InputError.exit_code)


def agree(accelerator: Accelerator, problem: str | None, cause: BaseException | None = None) -> None:
    """Raise an error on all processes if any process has a `problem`. The error's message is the first such problem.
    The error is a `StoppedTogether`, or a `TrainingError` if there is only one process."""
    if accelerator.num_processes == 1:
        if problem is not None:
            raise TrainingError(problem) from cause
        return
    problems = [text for text in gather_object([problem]) if text is not None]
    if problems:
        raise StoppedTogether(problems[0]) from cause


def over_processes(accelerator: Accelerator, values: Mapping[str, torch.Tensor], counts: bool) -> dict[str, float]:
    """Return the mean of each value (a tensor of shape `()`) over all processes, or the maximum or minimum if the
    value's name ends in "max" or "min". This is a collective operation.

    Args:
        counts: whether to include this process's values. If no process includes its values, the result is empty.
    """
    mine = torch.stack([value.float() for value in values.values()])
    rows = torch.cat([mine, mine.new_tensor([counts])])
    everywhere = accelerator.gather(rows).view(-1, len(rows)).cpu()
    everywhere = everywhere[everywhere[:, -1] > 0]
    reduce = {"max": torch.max, "min": torch.min}
    columns = zip(values, everywhere.T[:-1], strict=True)
    return {name: reduce.get(name[-3:], torch.mean)(column).item() for name, column in columns if len(column)}


def choose_folder(output_dir: str | Path | None, name: str, resume: str | Path | None = None) -> Path:
    """Choose the run's folder with `RunFolder.choose`, and create it if `output_dir` is None. With several processes,
    the main process chooses the folder for all of them."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        from torch.utils.cpp_extension import get_default_build_root

        # Clear the locks before the processes connect, because DeepSpeed compiles an extension while they connect.
        clear_stale_locks(Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()))
    if world_size() == 1:
        return RunFolder.choose(output_dir, name, resume, create=True)
    from rg_env.inference.models import processes

    return on_main(processes(), lambda: RunFolder.choose(output_dir, name, resume, create=True))


STALE_S = 600.0
"""Seconds without a change in a lock's folder after which the lock is considered stale. Compilation takes a minute or
two."""


def clear_stale_locks(root: Path) -> None:
    """Remove locks in `root`, torch's folder for compiled extensions, that were left by processes killed while
    DeepSpeed was compiling. Without this cleanup, every later run would wait for these locks forever, without a
    message. All processes of a run may call this function."""
    for lock in root.rglob("lock"):
        with contextlib.suppress(OSError):  # another process may have removed the lock
            changed = max(file.stat().st_mtime for file in lock.parent.iterdir())
            if time.time() - changed > STALE_S:
                lock.unlink()
                print_once(f"removed {lock}, which was left by a process that was killed while compiling")
