"""Measure the CPU time from the start of a command to its first answer, or to its end if it gives no answers.

    .venv/bin/python benchmarks/startup.py                      # four rounds, of which the first is not counted
    .venv/bin/python benchmarks/startup.py --before CHECKOUT    # compared with an earlier commit

CPU time (user and system, of the command and its child processes) depends less on other load than elapsed time does,
but a busy machine still inflates it, so quote the ratio to the first line. That line is the least that any program
needs to use the tiny policy with transformers: importing torch and the class of the model. All commands take turns, and
rows are cached, as in every start but the first.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

FLOOR = "import torch; from transformers import LlamaForCausalLM"
RUN = ["splits.num_train_examples=128", "splits.num_eval_examples=8", "training.max_steps=1"]
TRAIN = ["train", str(Path(__file__).parents[1] / "configs/train/tiny.yaml"), *RUN, "output.dir=run"]
EVAL = ["eval", "--models", "tiny", "--tasks", "leg_counting", "-n", "8", "--max-tokens", "90", "--output-dir", "eval"]
COMMANDS: dict[str, tuple[list[str], str]] = {
    "rg-env train": (TRAIN, "evaluation after step"),
    "rg-env eval": (EVAL, "tiny: 8 of 8"),
    "rg-env train --sweep, four whole runs": ([*TRAIN, "--sweep", "seed=0,1,2,3"], ""),
    "rg-env train --dry-run": ([*TRAIN, "--dry-run"], ""),
    "rg-env train, invalid config": ([*TRAIN, "training.max_stepz=1"], ""),
    "rg-env tasks": (["tasks"], ""),
    "rg-env --help": (["--help"], ""),
}
"""Arguments of each command, and the beginning of the line that ends the measurement."""


def cpu_s(code: str, arguments: list[str], until: str, path: str | None) -> float:
    """Run Python code in an empty folder, and return the CPU seconds until it prints a line that begins with `until`,
    or until it ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"PYTHONPATH": path} if path else {}
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "errors", "wb") as errors:
        program = psutil.Popen(
            [sys.executable, "-W", "ignore", "-c", code, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        printed = []
        for line in program.stdout:
            printed.append(line)
            if until and line.startswith(until):
                times = [each.cpu_times() for each in (program, *program.children(recursive=True))]
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
                return (
                    sum(each.user + each.system for each in times) + times[0].children_user + times[0].children_system
                )
        with contextlib.suppress(ChildProcessError):
            _, _, usage = os.wait4(program.pid, 0)
            if not until:
                return usage.ru_utime + usage.ru_stime
        sys.exit(f"{arguments}: no line {until!r}\n{''.join(printed)}{(Path(folder) / 'errors').read_text()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of rg_env to compare with")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    sides = {"": None, **({" before": str(options.before.resolve())} if options.before else {})}
    program = "from rg_env.cli.main import main; main()"
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        measured = {FLOOR: cpu_s(FLOOR, [], "", None)}
        for name, (arguments, until) in COMMANDS.items():
            measured |= {name + side: cpu_s(program, arguments, until, path) for side, path in sides.items()}
        if number or options.rounds == 1:  # the first round compiles modules and fills the cache of rows
            for name, seconds in measured.items():
                found.setdefault(name, []).append(seconds)
    floor = statistics.median(found[FLOOR])
    for name, seconds in found.items():
        low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
        print(f"{name:58} {middle:6.2f} CPU s ({low:.2f} to {high:.2f}), {middle / floor:5.2f} times the first line")


if __name__ == "__main__":
    main()
