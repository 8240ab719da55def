"""Script that trains with the real TRL and prints the results as a line of JSON.

    PYTHON tests/adapters/train_trl.py FOLDER

FOLDER is an empty folder for the output of the runs.
"""

import contextlib
import io
import json
import re
import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rg_env.commands import prepare_process
from rg_env.tiny import POLICY_DIR, TASKS

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_trl.py"
MIXTURE = [{"name": name, "config": TASKS[name]} for name in ("leg_counting", "chain_sum")]


def run_example(folder: Path) -> dict[str, Any]:
    """Run four steps of the example. Return the accuracy before and after, and the reward of each step."""
    sys.argv = [str(EXAMPLE), "--max-steps", "4", "--eval-examples", "60", "--output-dir", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    before, after = map(float, re.findall(r"(\d\.\d+) (?:before|after)", printed.getvalue().splitlines()[-1]))
    rewards = re.findall(r"^step \d+: reward ([\d.]+),", printed.getvalue(), re.MULTILINE)
    return {"before": before, "after": after, "rewards": list(map(float, rewards))}


def trainer_of(rewards: Any, folder: Path) -> Any:
    """Return TRL's trainer for the tiny policy on a mixture of two tasks."""
    from trl import GRPOConfig, GRPOTrainer

    from rg_env.adapters.trl import load_environment

    env = load_environment(MIXTURE, num_train_examples=16, num_eval_examples=8, rewards=rewards)
    args = GRPOConfig(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=32, num_generations=4, num_generations_eval=1,
        max_completion_length=90, reward_weights=env.reward_weights, use_cpu=True, bf16=False, report_to="none",
        gradient_checkpointing=False, dataloader_pin_memory=False, save_strategy="no", logging_steps=1,
        disable_tqdm=True, model_init_kwargs={"dtype": "float32"}, log_completions=True, num_completions_to_print=1,
    )  # fmt: skip
    return GRPOTrainer(str(POLICY_DIR), env.reward_funcs, args, env.train_dataset, env.eval_dataset)


def one_step(folder: Path) -> dict[str, Any]:
    """Return the logs of a training step and an evaluation, and the columns of the table of completions."""
    trainer = trainer_of({"correctness": 1.0, "format": 0.1, "length": 0.0}, folder)
    evaluated = trainer.evaluate()
    trainer.train()
    (logged,) = [logs for logs in trainer.state.log_history if "step_time" in logs]
    return {"logged": logged, "evaluated": evaluated, "columns": list(trainer._logs["extra"])}


def failing_reward(folder: Path) -> str:
    """Return the error that ends a run whose reward function raises an exception."""

    def bad(rollout: Any) -> float:
        raise KeyError("x")

    try:
        trainer_of(["correctness", bad], folder).train()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    prepare_process()
    folder = Path(sys.argv[1])
    results = {
        "trl": version("trl"),
        "example": run_example(folder / "example"),
        **one_step(folder / "mixture"),
        "error": failing_reward(folder / "error"),
    }
    print(json.dumps(results))
