"""The environment as an object of Verifiers' v1 API, for releases that have no other (0.4).

    env = rg_env.load_environment("leg_counting", split="eval")      # rows, prompts and scores as everywhere
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=URL, api_key_var=KEY_VARIABLE))
    async with env.serving():
        episodes = [await env.run_episode(task, context) for task in env.taskset]

Commands of Verifiers and prime-rl load the taskset by its id instead (`rg_env.adapters.v1`), whose config is plain
values. This object lives in one process, so its rewards may be functions.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rg_env.adapters.v1 import (
    ReasoningGymTask,
    ReasoningGymTaskset,
    ReasoningGymTasksetConfig,
    SingleTurnEnv,
    SingleTurnEnvConfig,
    tasks_of,
)
from rg_env.core.data.selection import Row
from rg_env.core.environment import ReasoningGym
from rg_env.core.rewards.registry import with_parameters_of
from rg_env.errors import InputError, unknown_name

SPLITS = ("train", "eval")


def _parameters() -> inspect.Signature:
    """The parameters of `ReasoningGym`, and `split`."""
    split = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, default="eval")
    return inspect.Signature([*inspect.signature(ReasoningGym).parameters.values(), split])


class ReasoningGymEnv(SingleTurnEnv):
    """A single-turn environment over Reasoning Gym tasks, whose training and evaluation rows never share a problem.

    Args:
        split: the rows of `taskset`: "eval" or "train".
        gym, num_train_examples, num_eval_examples and all others: as for `ReasoningGym`.

    Attributes:
        environment: the `ReasoningGym` with both splits, which `GRPOTrainer` trains on; `mixture`, `manifest`,
            `rewards`, `prompt_options` and `grading` are its own.
        taskset: the rows of `split` as Verifiers' tasks.

    Raises:
        InputError: for what cannot work. `GenerationError`: a draw that takes too long.
    """

    __signature__ = _parameters()

    def __init__(self, *args: Any, split: Literal["train", "eval"] = "eval", **options: Any) -> None:
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        self.environment = env = ReasoningGym(*args, **options)
        self.mixture, self.manifest, self.rewards = env.mixture, env.manifest, env.rewards
        self.prompt_options, self.grading = env.prompt_options, env.grading
        config = SingleTurnEnvConfig(taskset={"id": "rg-env"})
        task = config.taskset.task.model_copy()
        task._rubric = env.rubric
        given = inspect.signature(ReasoningGym).bind(*args, **options).arguments
        known = {name: value for name, value in given.items() if name in ReasoningGymTasksetConfig.model_fields}
        own = {"task": task, "split": split, "grading": env.grading, "instruction": env.system_prompt}
        # Copied and not validated: functions and mixtures are not values that a config file could have.
        taskset = config.taskset.model_copy(update={**known, **own})
        super().__init__(config.model_copy(update={"taskset": taskset}))
        self.taskset = _RowsTaskset(taskset, env.train_rows if split == "train" else env.eval_rows)

    def to_examples(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows of `core.data` with this environment's prompt and grading."""
        return self.environment.to_examples(rows)


class _RowsTaskset(ReasoningGymTaskset):
    """A taskset of rows that were drawn already."""

    def __init__(self, config: ReasoningGymTasksetConfig, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(config)
        self._rows = rows

    def load(self) -> Iterator[ReasoningGymTask]:
        split = self.config.split
        if not self._rows:
            other = SPLITS[split == SPLITS[0]]
            raise InputError(f"num_{split}_examples is 0: there are no tasks; raise it, or give split={other!r}")
        return tasks_of(self._rows, self.config.task)


@with_parameters_of(ReasoningGymEnv)
def load_environment(*args: Any, **options: Any) -> ReasoningGymEnv:
    """`rg_env.load_environment` with these releases; parameters as for `ReasoningGymEnv`."""
    return ReasoningGymEnv(*args, **options)
