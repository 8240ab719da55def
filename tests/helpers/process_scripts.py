"""Scripts that train in several processes on this machine."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from forked_python import PYTHON

WITHIN_S = 500
"""Time limit in seconds. Imports and the code that DeepSpeed compiles on first use take most of it, and a busy machine
needs three times as long as an idle one."""
CONFIGS = Path(__file__).parents[2] / "configs"

HEAD = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import errno
import json
import math
import os
import sys
from pathlib import Path
import torch
from transformers import TrainerCallback
from rg_env import ReasoningGym
from rg_env.errors import StoppedTogether
from rg_env.tiny import POLICY_DIR
from rg_env.training import (
    Curriculum, CurriculumConfig, EvaluationPlan, GRPOTrainer, MonitorCallback, MonitorsConfig, choose_folder,
    default_config, load_policy, train
)
from sampled_engine import Sampled

RANK = os.environ.get("RANK", "0")
NONE = EvaluationPlan(every=0, before=False, after=False)
torch.set_num_threads(1)


def tell(text):  # to a separate file per process, because lines of several processes mix on standard output
    with open(f"told-{RANK}", "a") as told:
        print(text, file=told)


def length(rollout):
    return float(len(rollout.token_ids))


def arguments(policy, folder, **fields):  # 2 processes, 2 micro-batches each
    return default_config(policy, folder, **{"rollouts_per_step": 16, "per_device_train_batch_size": 4,
                                             "num_generations": 4, "max_tokens": 12, **fields})
"""
"""Beginning of every script."""


def torchrun(processes: int) -> list[str]:
    """Return a command that starts a script on CPUs with torchrun."""
    options = ["--standalone", "--nproc_per_node", str(processes), "--no-python"]
    return [*PYTHON, "-m", "torch.distributed.run", *options, *PYTHON] if processes > 1 else PYTHON


def accelerate(config: str) -> list[str]:
    """Return a command that starts a script with an accelerate config from configs/."""
    options = ["--config-file", str(CONFIGS / config), "--main-process-port", "0", "--no_python"]
    return [*PYTHON, "-m", "accelerate.commands.launch", *options, *PYTHON]


def start(folder: Path, launcher: Sequence[str], arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a launcher with these arguments in its own session, with one thread per process."""
    on_cpus = {"ACCELERATE_USE_CPU": "true"} if "accelerate.commands.launch" not in launcher else {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **on_cpus}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*launcher, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, launcher: Sequence[str], arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a launcher to its end. If it takes too long, the error shows the output of all processes."""
    process = start(folder, launcher, arguments)
    try:
        output, errors = process.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        end(process)
        output, errors = process.communicate(timeout=60)
        pytest.fail(f"not finished within {WITHIN_S} s\n{output[-2000:]}\n{errors[-4000:]}")
    finally:
        end(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def end(process: "subprocess.Popen[str]") -> None:
    """End a launcher and its workers, which would otherwise keep the launcher's pipes open."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def run_script(
    folder: Path, launcher: Sequence[str], script: str, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script, prefixed with `HEAD`, in `folder`."""
    (folder / "script.py").write_text(HEAD + script)
    return run(folder, launcher, ["script.py", *arguments])


def told(folder: Path) -> list[list[str]]:
    """Return the lines that each process wrote, by rank."""
    return [file.read_text().splitlines() for file in sorted(folder.glob("told-*"))]
