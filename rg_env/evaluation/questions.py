"""Frozen questions (the evaluation rows of an environment), and records of rollouts in evaluations and training.

questions = Questions(ReasoningGym("maze", 0, 100))
questions.prompt(0)                   # prompt of the first question, as messages
questions.by_task()                   # one `Questions` per task
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rg_env.core.data.manifest import hash_of_rows, split_hash
from rg_env.core.data.splits import question_hash
from rg_env.core.data.user_rows import in_order
from rg_env.core.environment import Environment, ReasoningGym, Row
from rg_env.core.grading.scoring import Rollout, score, task_of
from rg_env.core.rewards import Scored
from rg_env.evaluation import results
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.results import Part

LEVEL = "rg_level"
"""Key in a row's `info` for the question's curriculum level, as a string."""
_CONSTANTS = 3
"""Number of gold answers, most frequent first, to try as the constant answer."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Evaluation rows of an environment, identified by their index."""

    env: Environment
    part: Part | None = None
    """The questions' role in a training run; None outside a training run."""
    label: str | None = None
    """Name for reports; None: each row is reported under its task."""
    floor: float | None = None
    """Accuracy of the best constant answer; None if not measured."""
    task: str | None = None
    """Task to include; None: all rows."""

    @property
    def rows(self) -> Sequence[Row]:
        """All evaluation rows of the environment."""
        return self.env.eval_rows

    @cached_property
    def numbers(self) -> list[int]:
        """Indices of the included rows."""
        return [number for number, row in enumerate(self.rows) if self.task in (None, task_of(row["info"]))]

    @cached_property
    def hashes(self) -> list[str]:
        """Hashes of the environment's questions."""
        return [question_hash(question_of(row)) for row in self.rows]

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks of the environment's rows, in alphabetical order."""
        return sorted({task_of(row["info"]) for row in self.rows})

    @property
    def name(self) -> str:
        """Name for reports."""
        return self.label or self.task or task_of(self.rows[0]["info"])

    def by_task(self) -> "list[Questions]":
        """Split the questions by the names used in reports, in alphabetical order."""
        if self.label:
            return [self]
        return [replace(self, task=task) for task in self.tasks]

    def prompt(self, number: int, system_prompt: str | None = None) -> Any:
        """Prompt of a row; `system_prompt` replaces the environment's."""
        row = self.rows[number]
        if system_prompt is None:
            return row["prompt"]
        return replace(self.env.prompt_options, system_prompt=system_prompt).messages(row["question"])

    def described(self) -> results.Environment:
        """Description of the environment for results."""
        return results.Environment(
            part=self.part,
            label=self.label,
            tasks=self.tasks,
            n=len(self.rows),
            manifest_sha256=None if self.env.manifest is None else split_hash(self.env.manifest, "eval"),
            prompts_sha256=hash_of_rows(self.rows),
        )


def question_of(row: Row) -> str:
    """Text of a row's question; if the row has no question, the last message of its prompt."""
    prompt = row["prompt"]
    found = row.get("question")
    return str(found if found is not None else prompt if isinstance(prompt, str) else prompt[-1]["content"])


def record_of(rollout: Rollout, scored: Scored) -> dict[str, Any]:
    """A scored rollout as a JSON-compatible dict."""
    level, correct = rollout.info.get(LEVEL), scored.metrics.get("accuracy")
    score = rollout.score if "status/wrong" in scored.metrics else None
    return {
        "task": rollout.task,
        **({} if level is None else {"level": int(level)}),
        "question": question_of(rollout.row),
        "answer": rollout.answer,
        "completion": rollout.text,
        "completion_tokens": rollout.completion_tokens,
        "truncated": rollout.truncated,
        "extracted": score.answer if score else None,
        "score": score.value if score else None,
        "correct": None if correct is None else correct == 1.0,
        "reward": scored.reward,
        "rewards": scored.rewards,
        "status": score.status if score else None,
        "detail": score.detail if score else "",
    }


def draw(config: EvalConfig, name: str) -> Questions:
    """Questions for the entry `name` in `tasks`, or from `data` if `name` is its name; they are the same on every
    machine.

    Raises:
        InputError: Reasoning Gym rejects the options, the task has too few questions, or the data cannot be read.
        GenerationError: generating a row takes too long.
    """
    how: dict[str, Any] = {
        "rewards": config.reward_list,
        "system_prompt": config.prompt.system_prompt,
        "prompt_placement": config.prompt.placement,
        "preamble": config.prompt.preamble,
    }
    if config.data and name == config.data_name:
        rows = in_order(config.data.rows(), config.eval_seed)
        return Questions(Environment(eval_rows=rows[: config.count(name)], **how), label=name)
    env = ReasoningGym(
        config.gym(name),
        num_train_examples=0,
        num_eval_examples=config.count(name),
        eval_seed=config.eval_seed,
        grading=config.grading,
        split_by=config.split_by,
        **how,
    )
    return Questions(env, label=name, floor=None if env.rubric.in_workers else _floor(env))


def _floor(env: Environment) -> float:
    golds = Counter(row["answer"] for row in env.eval_rows if row["answer"].strip())
    shares = [
        sum(score(f"<answer>{gold}</answer>", row["info"]).status == "correct" for row in env.eval_rows)
        / len(env.eval_rows)
        for gold, _ in golds.most_common(_CONSTANTS)
    ]
    return max(shares, default=0.0)
