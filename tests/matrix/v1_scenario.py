"""Script that runs in the environment of each release with the v1 API: `python v1_scenario.py FOLDER` prints JSON.

FOLDER contains own.py, with a user's reward and task, and spec.json: `accepted` and `refused` options of the taskset by
name.
"""

import asyncio
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

import rg_env

try:
    from verifiers.v1.utils import loaders
except ImportError:  # 0.2
    from verifiers.v1 import loaders

GOLD = ["leg_counting", "sudoku", "maze", "word_ladder", "countdown", "zebra_puzzles", "tower_of_hanoi"]


def config(**options: Any) -> Any:
    kind = loaders.taskset_config_type("rg-env")
    return kind.model_validate({"id": "rg-env", "num_eval_examples": 3, **options})


def tasks(**options: Any) -> list[Any]:
    return list(loaders.load_taskset(config(**options)).load())


def trace_of(task: Any, reply: str) -> Any:
    """Return a finished trace with only what scoring needs; the tests of commands use Verifiers' own traces."""

    class Trace:
        def __init__(self) -> None:
            self.rewards: dict[str, tuple[float, float]] = {}
            self.metrics: dict[str, float] = {}
            self.assistant_messages = [vf.AssistantMessage(content=reply)]
            self.calls: list[Any] = []

        def record_reward(self, name: str, value: float, weight: float) -> None:
            self.rewards[name] = value, weight

        def record_metric(self, name: str, value: float) -> None:
            self.metrics[name] = value

    return Trace()


def scored(task: Any, reply: str) -> Any:
    trace = trace_of(task, reply)
    asyncio.run(task.rubric(trace))
    return {"rewards": trace.rewards, "metrics": trace.metrics}


def row(task: Any) -> dict[str, Any]:
    return {"system": task.data.system_prompt, "prompt": task.data.prompt, "info": task.data.info}


def refused(**options: Any) -> str:
    """Return the error raised when the config is read; later errors would print a traceback."""
    try:
        config(**options)
    except ValueError as error:
        return str(error)
    return ""


def loaded() -> list[str]:
    """Return the name of the class that `load_environment` returns, and its module."""
    env = rg_env.load_environment(num_train_examples=1, num_eval_examples=1)
    assert len(env.environment.train_rows) == 1
    assert type(env) is rg_env.ReasoningGymEnv
    return [type(env).__name__, type(env).__module__]


async def gold(tasks: list[Any]) -> list[bool | None]:
    return [await task.validate(None) for task in tasks]


def main() -> None:
    import os

    os.chdir(Path(sys.argv[1]))
    spec = json.loads(Path("spec.json").read_text())
    found: dict[str, Any] = {
        "accepted": {name: [row(task) for task in tasks(**options)] for name, options in spec["accepted"].items()},
        "refused": {name: refused(**options) for name, options in spec["refused"].items()},
        "a function": refused(rewards=[print]),
        "loaded": loaded(),
        "gold": asyncio.run(gold(tasks(gym=GOLD, num_eval_examples=2 * len(GOLD)))),
    }
    keys = [task.key for task in tasks(gym=GOLD, num_eval_examples=2 * len(GOLD))]
    found["keys"] = [len(keys), len(set(keys))]
    own = {"imports": ["own.py"], "rewards": {"correctness": 1.0, "shouts": {"weight": 0.5, "when": "answered"}}}
    (task, *_) = tasks(gym="own_sums", **own)
    found["own"] = scored(task, f"<answer>{task.data.answer}</answer>")
    # A server's process receives the config either pickled or as plain values.
    for name, taskset in (
        ("pickled", pickle.loads(pickle.dumps(config(gym="own_sums", **own)))),
        ("dumped", type(config()).model_validate(config(gym="own_sums", **own).model_dump())),
    ):
        found[name] = scored(type(task)(task.data, taskset.task), f"<answer>{task.data.answer}</answer>")
    found["bare"] = scored(type(task)(tasks()[0].data), "<answer>x</answer>")
    found["one reward"] = scored(tasks(rewards="format")[0], "<answer>x</answer>")["rewards"]
    (task, *_) = tasks(gym="word_sorting", grading="upstream")
    found["upstream"] = scored(task, "<answer>x</answer>")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
