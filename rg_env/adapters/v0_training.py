"""Anybody's single-turn environment for Verifiers' v0 API, as what `GRPOTrainer` trains on: its rows, scored by its
rubric. Rubrics of 0.1.6 (`score_rollouts`) and of 0.3.1 (`score_group`) are distinguished by their methods.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import verifiers as vf

from rg_env.adapters.scoring import ScoringLoop, record_reward_errors
from rg_env.core.environment import Environment, PromptOptions, Row, prompted_rows
from rg_env.core.grading.rollout import UNNAMED_TASK, Rollout
from rg_env.core.grading.rubric import Scored
from rg_env.core.rewards.builtin import checked_value, describe
from rg_env.errors import InputError, RewardError

_HOOKS = ("rollout", "setup_state", "is_completed", "env_response", "get_prompt_messages", "get_context_messages",
          "get_model_response", "render_completion")  # fmt: skip
"""Methods by which an environment changes what happens in a rollout: the trainer would not call them."""
_ROW = "verifiers_row"
"""Key of a row under which the dataset's own row is, as the rubric wants it."""


_MONITORS = ("num_turns",)
"""What later releases count by themselves, by functions of weight 0: always 1 here."""


class VerifiersEnvironment(Environment):
    """Rows and rewards of a `vf.SingleTurnEnv`. Its rubric scores; a reward that raises, or returns None, is an error.

    Raises:
        InputError: the environment has several turns, tools or rollouts of its own, or no rows.
    """

    def __init__(self, env: Any) -> None:
        _check_single_turn(env)
        self.env = env
        self.prompt_options = PromptOptions.of(system_prompt=env.system_prompt)
        self.train_rows, self.eval_rows = (
            _rows(env, name, self.prompt_options) for name in ("dataset", "eval_dataset")
        )
        if not self.train_rows and not self.eval_rows:
            raise InputError(f"{type(env).__name__} has neither training nor evaluation rows")
        self._errors = record_reward_errors(env.rubric)
        names, weights = (_of_rubric(env.rubric, name) for name in ("reward_func_names", "reward_weights"))
        by_name = dict(zip(names, map(float, weights), strict=True))
        self._weights = {name: weight for name, weight in by_name.items() if name not in _MONITORS}
        if not self._weights:
            raise InputError(f"the rubric of {type(env).__name__} has no reward function")
        self._loop = ScoringLoop()

    @property
    def reward_weights(self) -> dict[str, float]:
        return self._weights

    @property
    def has_accuracy(self) -> bool:
        return "accuracy" in self._weights

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        states = [self._state(rollout) for rollout in rollouts]
        rubric = self.env.rubric
        scoring = _scored_rollouts if hasattr(rubric, "score_rollouts") else _scored_groups
        self._errors.forget()
        try:
            found = self._loop.run(scoring(rubric, states))
        except Exception as error:
            self._errors.raise_first()
            raise RewardError(f"rubric {type(rubric).__name__} raised {type(error).__name__}: {error}") from error
        self._errors.raise_first()
        return [self._checked(*each) for each in zip(rollouts, found, strict=True)]

    def _checked(self, rollout: Rollout, found: tuple[Any, Mapping[str, Any]]) -> Scored:
        """Values of a rubric whose class computes them in a way of its own, which the record of errors does not see."""
        where = describe(rollout.task, rollout.extraction.answer, rollout.text)
        values = {name: checked_value(name, value, where) for name, value in found[1].items() if name not in _MONITORS}
        metrics = {"accuracy": values.pop("accuracy")} if "accuracy" in values else {}
        return Scored(checked_value(f"of {type(self.env.rubric).__name__}", found[0], where), values, metrics)

    def _state(self, rollout: Rollout) -> Any:
        """What a rubric reads of a rollout, in the form that the release has."""
        row = dict(rollout.row[_ROW])
        prompt, completion = self._messages(rollout)
        row |= {"prompt": prompt, "answer": row.get("answer", ""), "info": dict(rollout.info)}
        step = {"prompt": prompt, "completion": completion, "response": None, "tokens": None, "reward": None,
                "advantage": None, "is_truncated": bool(rollout.truncated), "extras": {}}  # fmt: skip
        state: Any = getattr(vf, "State", dict)()
        state.update(
            **{key: row[key] for key in ("prompt", "answer", "info")},
            input=row,
            task=row if hasattr(self.env.rubric, "task_for_state") else row.get("task") or UNNAMED_TASK,
            example_id=row.get("example_id", 0),
            completion=completion,
            responses=[],
            trajectory=[step],
            turn=1,
            is_completed=True,
            is_truncated=bool(rollout.truncated),
            timing={"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
            reward=None,
            metrics=None,
        )
        return state

    def _messages(self, rollout: Rollout) -> tuple[Any, Any]:
        if isinstance(rollout.prompt, str):
            return rollout.prompt, rollout.text
        kinds = {role: getattr(vf, f"{role.title()}Message", dict) for role in ("system", "user", "assistant")}
        prompt = [kinds.get(message["role"], dict)(**message) for message in rollout.prompt]
        return prompt, [kinds["assistant"](role="assistant", content=rollout.text)]


async def _scored_rollouts(rubric: Any, states: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """By a rubric up to 0.1.6."""
    found = await rubric.score_rollouts(
        prompts=[state["prompt"] for state in states],
        completions=[state["completion"] for state in states],
        answers=[state["answer"] for state in states],
        states=states,
        tasks=[state["task"] for state in states],
        infos=[state["info"] for state in states],
        example_ids=[state["example_id"] for state in states],
        use_tqdm=False,
    )
    by_name = found.metrics.items()
    return [(reward, {name: values[i] for name, values in by_name}) for i, reward in enumerate(found.reward)]


async def _scored_groups(rubric: Any, states: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """By a later one, which scores the rollouts of a row together."""
    groups = groupby(states, key=lambda state: (state["example_id"], repr(state["prompt"])))
    await asyncio.gather(*(rubric.score_group(list(group)) for _, group in groups))
    return [(state.get("reward"), state.get("metrics") or {}) for state in states]


def _check_single_turn(env: Any) -> None:
    name, base = type(env).__name__, vf.SingleTurnEnv
    if not isinstance(env, base):
        why = "is not a SingleTurnEnv: it may have several turns or tools"
    elif getattr(env, "oai_tools", None) or getattr(env, "tool_defs", None):
        why = "has tools"
    elif own := [hook for hook in _HOOKS if getattr(type(env), hook, None) is not getattr(base, hook, None)]:
        why = f"has {', '.join(own)} of its own"
    else:
        return
    raise InputError(f"{name} {why}, and GRPOTrainer samples single turns by itself: train it with prime-rl")


def _of_rubric(rubric: Any, name: str) -> list[Any]:
    get = getattr(rubric, f"get_{name}", None) or getattr(rubric, f"_get_{name}")  # up to 0.1.6, and later
    return list(get())


def _rows(env: Any, name: str, options: PromptOptions) -> list[dict[str, Any]]:
    build = getattr(env, f"build_{name}", None)  # later releases build them when first needed
    dataset = build() if build else getattr(env, name)
    return prompted_rows([_row(row) for row in dataset or ()], name, options)


def _row(row: Row) -> dict[str, Any]:
    """A row of a dataset as one of `Environment`. Datasets give every message all keys that any of them has."""
    prompt, answer, info = row.get("prompt"), row.get("answer"), row.get("info")
    if isinstance(prompt, list):
        prompt = [{key: value for key, value in message.items() if value is not None} for message in prompt]
    info = json.loads(info) if isinstance(info, str) else info
    return {**row, "prompt": prompt, "answer": "" if answer is None else str(answer), "info": info, _ROW: row}
