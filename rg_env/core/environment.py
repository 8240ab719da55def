"""The environment: rows, how they are prompted, and what answers to them are worth. No torch, no framework.

    env = ReasoningGym("leg_counting", num_train_examples=2000, num_eval_examples=200)
    env = Environment(train_rows, eval_rows, rewards=["correctness", my_reward])

    row = env.eval_rows[0]
    [scored] = env.score([env.rollout(row, "4 + 4 = 8 <answer>8</answer>")])
    scored.reward, scored.rewards, scored.metrics

The trainer takes it as it is; `rg_env.adapters` turns it into what other frameworks want.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rg_env.core.data.dataset import build_splits
from rg_env.core.data.manifest import Manifest
from rg_env.core.data.selection import Row as DrawnRow
from rg_env.core.data.splits import SplitBy
from rg_env.core.grading.rollout import Rollout
from rg_env.core.grading.rubric import OFFERED, Rubric, Scored, metrics_of, metrics_of_rows, needs_workers
from rg_env.core.prompt_options import Asking, check_text
from rg_env.core.prompts import SYSTEM_PROMPT, Placement
from rg_env.core.rewards.builtin import WeightedReward, check_offered, resolve_rewards
from rg_env.core.rewards.registry import with_parameters_of
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import shortened
from rg_env.errors import InputError

Row = Mapping[str, Any]
"""`prompt` (chat messages, or text that is continued as it stands), `answer` (gold answer, may be empty), `info`, and
whatever else the user keeps there."""


class Environment:
    """Single-turn prompts and rewards from anybody's data.

    Args:
        train_rows, eval_rows: rows with `question` (text, prompted with `system_prompt`) or `prompt` (chat messages, or
            text that the model continues), and optionally `answer` (gold answer) and `info` (a mapping).
        rewards: anything `rg_env.core.rewards.builtin.resolve_rewards` takes; default: correctness 1, format 0.1.
            Answers are correct if they equal the row's `answer` as number or text.
        system_prompt, prompt_placement, preamble, few_shot: how a `question` becomes a prompt; see `ReasoningGym`.

    Raises:
        InputError: a row without a prompt, a reward that cannot be resolved, nothing to train or evaluate on.
    """

    manifest: dict[str, Any] | None = None
    """What the rows are (`core.data.manifest`); None for rows that rg_env did not draw."""
    mixture: Mixture | None = None
    """The Reasoning Gym tasks; None for rows of the user's own."""
    offered: ClassVar[Sequence[str]] = OFFERED
    """Parameter names that rewards may use."""

    def __init__(
        self,
        train_rows: Iterable[Row] = (),
        eval_rows: Iterable[Row] = (),
        rewards: Any = None,
        *,
        system_prompt: str | None = SYSTEM_PROMPT,
        prompt_placement: Placement = "system",
        preamble: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.asking = Asking.of(
            system_prompt=system_prompt, prompt_placement=prompt_placement, preamble=preamble, few_shot=few_shot
        )
        weighted = self._resolved(rewards)
        self.train_rows: Sequence[Row] = prompted_rows(train_rows, "train_rows", self.asking)
        self.eval_rows: Sequence[Row] = prompted_rows(eval_rows, "eval_rows", self.asking)
        if not self.train_rows and not self.eval_rows:
            raise InputError("train_rows and eval_rows are both empty: there is nothing to do")
        self.rubric = Rubric(weighted, metrics_of_rows(weighted, [*self.train_rows, *self.eval_rows]))

    def _resolved(self, rewards: Any) -> list[WeightedReward]:
        resolved = resolve_rewards(rewards)
        check_offered(resolved, self.offered, "this environment")
        return resolved

    @property
    def rewards(self) -> Sequence[WeightedReward]:
        """The rewards: name, function, weight, gate."""
        return self.rubric.rewards

    @property
    def reward_weights(self) -> dict[str, float]:
        """The rewards' weights by name, in order."""
        return {reward.name: reward.weight for reward in self.rewards}

    @property
    def system_prompt(self) -> str | None:
        """What is said in addition to the question."""
        return self.asking.system_prompt

    @property
    def has_accuracy(self) -> bool:
        """Whether rollouts are right or not: `metrics` of `score` then include `accuracy`."""
        return any(metric.name == "accuracy" for metric in self.rubric.metrics)

    def rollout(
        self,
        row: Row,
        text: str,
        *,
        token_ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        completion_tokens: int | None = None,
        truncated: bool | None = None,
    ) -> Rollout:
        """A completion for one of the rows. `completion_tokens` defaults to the number of `token_ids`, if given."""
        if completion_tokens is None and token_ids:
            completion_tokens = len(token_ids)
        return Rollout(
            row["prompt"], text, row["answer"], row["info"], completion_tokens, truncated, token_ids, logprobs, row
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """What each rollout earned, in order.

        Raises:
            RewardError: a reward raised, or returned no finite number; with the reward and the rollout.
            InputError: a rollout's `info` is broken.
        """
        return self.rubric.score(rollouts)


class ReasoningGym(Environment):
    """Reasoning Gym tasks, whose training and evaluation rows never share a problem.

    Args:
        gym: anything `Mixture.parse` takes: a task's name, a mapping, a list of them.
        num_train_examples, num_eval_examples: rows of each split.
        seed, eval_seed: pick the training and the evaluation rows.
        rewards: anything `resolve_rewards` takes; default: correctness 1, format 0.1.
        system_prompt: what is said besides the question.
        prompt_placement: `"system"`; `"user"` puts `system_prompt` before the question, for chat templates that reject
            a system role, `"user_after"` behind it.
        preamble: a system message besides, before a `system_prompt` in the system message.
        few_shot: messages before the question.
        partial_credit: the same as `grading="partial"`.
        grading: `"hardened"`: right or wrong; `"partial"`: real progress counts; `"upstream"`: the library's own
            formulas (`core.grading.scoring`).
        manifest: the `manifest.json` of a run, or its content; rows other than that run's are refused.
        split_by: what decides the split of a row: its `"problem"`, or its `"question"` (`core.data.splits`).

    Raises:
        InputError: for what cannot work. `GenerationError`: a draw that takes too long.
    """

    mixture: Mixture
    manifest: dict[str, Any]

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
    ) -> None:
        # Everything cheap is checked before rows are built.
        self.mixture = Mixture.parse(gym)
        weighted = self._resolved(rewards)
        self.asking = Asking.of(
            system_prompt=system_prompt,
            prompt_placement=prompt_placement,
            preamble=preamble,
            few_shot=few_shot,
            partial_credit=partial_credit,
            grading=grading,
        )
        self.grading = self.asking.grading
        metrics = metrics_of(weighted, self.mixture, self.grading)
        self.rubric = Rubric(weighted, metrics, needs_workers(self.mixture, self.grading))
        if num_train_examples == 0 and num_eval_examples == 0:
            raise InputError("num_train_examples and num_eval_examples are both 0: there is nothing to do")
        train, evaluation, self.manifest = build_splits(
            self.mixture, num_train_examples, num_eval_examples, seed, eval_seed, split_by=split_by, manifest=manifest
        )
        self.train_rows, self.eval_rows = self.put_rows(train), self.put_rows(evaluation)

    def put_rows(self, rows: Sequence[DrawnRow]) -> list[dict[str, Any]]:
        """Rows of `core.data.dataset` with this environment's prompt and grading."""
        return self.asking.put_rows(rows)


@with_parameters_of(ReasoningGym)
def load_environment(*args: Any, **options: Any) -> ReasoningGym:
    """The environment without Verifiers' v0 API: what `rg_env.load_environment` is where that is not installed."""
    return ReasoningGym(*args, **options)


def prompted_rows(rows: Iterable[Row], name: str, asking: Asking) -> list[dict[str, Any]]:
    """Rows in the form that environments have them: prompt, answer (text), info, example_id, and their own columns.

    Raises:
        InputError: a row that cannot be used, by `name` and index.
    """
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise InputError(f"{name} must be a list of rows, not {shortened(rows)}")
    messages = functools.cache(asking.messages)
    return [_row(row, f"{name}[{index}]", index, messages) for index, row in enumerate(rows)]


def _row(row: object, where: str, index: int, messages: Callable[[str], Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} must be a mapping with a question or a prompt, not {shortened(row)}")
    prompt, question = row.get("prompt"), row.get("question")
    if prompt is None and not (isinstance(question, str) and question.strip()):
        raise InputError(f"{where} has neither a prompt nor a question; it has {', '.join(map(str, row)) or 'nothing'}")
    prompt = messages(str(question)) if prompt is None else prompt
    is_chat = isinstance(prompt, Sequence) and all(
        isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in prompt
    )
    if not prompt or not (isinstance(prompt, str) or is_chat):
        raise InputError(
            f"{where}: prompt must be text, or a list of messages with role and content (text), not {shortened(prompt)}"
        )
    for text in [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]:
        check_text(f"{where}: prompt", text)
    answer, info = row.get("answer"), row.get("info")
    if not isinstance(answer, str | int | float | None) or answer != answer:
        raise InputError(f"{where}: answer must be text or a number, not {shortened(answer)}")
    if not isinstance(info, Mapping | None):
        raise InputError(f"{where}: info must be a mapping, not {shortened(info)}")
    known = {"prompt": prompt, "answer": "" if answer is None else str(answer), "info": dict(info or {})}
    return {**row, **known, "example_id": row.get("example_id", index)}
