"""The environment as an object of Verifiers' v1 API, for releases that have no other (0.4).

    env = rg_env.load_environment("leg_counting", split="eval")      # rows, prompts and scores as everywhere
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=URL, api_key_var=KEY_VARIABLE))
    async with env.serving():
        episodes = [await env.run_episode(task, context) for task in env.taskset]

Commands of Verifiers and prime-rl load the taskset by its id instead (`rg_env.adapters.v1`), whose config is plain
values. This object lives in one process, so its rewards may be functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rg_env.adapters.v1 import ReasoningGymTask, ReasoningGymTaskset, ReasoningGymTasksetConfig, tasks_of
from rg_env.adapters.v1_harness import SingleTurnEnv, SingleTurnEnvConfig
from rg_env.core.data.dataset import Row
from rg_env.core.data.manifest import Manifest
from rg_env.core.data.splits import SplitBy
from rg_env.core.environment import PromptOptions, ReasoningGym
from rg_env.core.prompts import SYSTEM_PROMPT, Placement
from rg_env.core.rewards.builtin import WeightedReward
from rg_env.core.rewards.registry import with_parameters_of
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError, unknown_name

SPLITS = ("train", "eval")


class ReasoningGymEnv(SingleTurnEnv):
    """A single-turn environment over Reasoning Gym tasks, whose training and evaluation rows never share a problem.

    Args:
        split: the rows that `taskset` has: "eval" or "train".
        gym, num_train_examples, num_eval_examples and all others: as for `ReasoningGym`.

    Attributes:
        environment: the `ReasoningGym` with both splits, which `GRPOTrainer` trains on.
        taskset: the rows of `split` as Verifiers' tasks.

    Raises:
        InputError: for what cannot work. `GenerationError`: a draw that takes too long.
    """

    def __init__(
        self,
        gym: Any = "leg_counting",
        num_train_examples: int = 2000,
        num_eval_examples: int = 200,
        *,
        seed: int = 0,
        eval_seed: int = 0,
        rewards: Any = None,
        system_prompt: str | None = SYSTEM_PROMPT,
        prompt_placement: Placement = "system",
        preamble: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        partial_credit: bool = False,
        grading: str = "hardened",
        manifest: str | Path | Manifest | None = None,
        split_by: SplitBy = "problem",
        split: Literal["train", "eval"] = "eval",
    ) -> None:
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        self.environment = env = ReasoningGym(
            gym,
            num_train_examples,
            num_eval_examples,
            seed=seed,
            eval_seed=eval_seed,
            rewards=rewards,
            system_prompt=system_prompt,
            prompt_placement=prompt_placement,
            preamble=preamble,
            few_shot=few_shot,
            partial_credit=partial_credit,
            grading=grading,
            manifest=manifest,
            split_by=split_by,
        )
        config = SingleTurnEnvConfig(taskset={"id": "rg-env"})
        task = config.taskset.task.model_copy()
        task._rubric = env.rubric
        options = {
            "task": task,
            "gym": gym,
            "num_train_examples": num_train_examples,
            "num_eval_examples": num_eval_examples,
            "seed": seed,
            "eval_seed": eval_seed,
            "rewards": rewards,
            "grading": env.grading,
            "instruction": system_prompt,
            "prompt_placement": prompt_placement,
            "preamble": preamble,
            "split": split,
            "split_by": split_by,
        }
        # Copied and not validated: functions and mixtures are no values that a config file could have.
        taskset = config.taskset.model_copy(update=options)
        super().__init__(config.model_copy(update={"taskset": taskset}))
        self.taskset = _RowsTaskset(taskset, env.train_rows if split == "train" else env.eval_rows)

    @property
    def mixture(self) -> Mixture:
        """The checked tasks of `gym`."""
        return self.environment.mixture

    @property
    def manifest(self) -> dict[str, Any]:
        """What the rows are (`core.manifest`)."""
        return self.environment.manifest

    @property
    def rewards(self) -> Sequence[WeightedReward]:
        """The rewards: name, function, weight, gate."""
        return self.environment.rewards

    @property
    def prompt_options(self) -> PromptOptions:
        """How questions are prompted and answers graded."""
        return self.environment.prompt_options

    @property
    def grading(self) -> str:
        """`"hardened"`, `"partial"` or `"upstream"`."""
        return self.environment.grading

    def to_examples(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows of `core.dataset` with this environment's prompt and grading."""
        return self.environment.to_examples(rows)


class _RowsTaskset(ReasoningGymTaskset):
    """Rows that have been drawn already."""

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
    """What `rg_env.load_environment` is with these releases; parameters as for `ReasoningGymEnv`."""
    return ReasoningGymEnv(*args, **options)
