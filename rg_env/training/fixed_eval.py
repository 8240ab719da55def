"""Asking frozen problems of a model while it trains: the same rows, prompts, extraction and scoring each time.

Every problem is answered `times` times, sampled (`accuracy`, `reward`), and once greedily (`greedy_accuracy`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rg_env.adapters.v0_rubric import kept_rollout, usage
from rg_env.training.curriculum import LEVEL
from rg_env.training.scores import Answers


async def ask(
    envs: Sequence[tuple[Any, bool]], client: Any, model: str, sampling: dict[str, Any], *, times: int, greedy: bool
) -> list[Answers]:
    """Answer each problem of the environments' evaluation sets: `times` times with `sampling`, and once greedily.

    Args:
        envs: environments, and whether their tasks are held out.

    Returns:
        A list of records a problem.

    Raises:
        RewardError: a reward raised or returned no finite number.
    """

    def answers(env: Any, times: int, **changes: Any) -> Any:
        arguments = {**sampling, **changes}
        return env.a_generate(
            _repeated(env.eval_dataset, times), client=client, model=model, sampling_args=arguments, use_tqdm=False
        )

    # At the same time, so that the embedded engine generates all of it as one batch.
    asked = [answers(env, times) for env, _ in envs]
    asked += [answers(env, 1, temperature=0.0) for env, _ in envs] if greedy else []
    outputs = await asyncio.gather(*asked)
    problems: list[Answers] = []
    for index, (_, held_out) in enumerate(envs):
        records = rollout_records(outputs[index])
        best = rollout_records(outputs[len(envs) + index]) if greedy else []
        for first in range(0, len(records), times):
            of_problem = records[first : first + times]
            sampled = [{"problem": len(problems), "held_out": held_out, **record} for record in of_problem]
            if greedy:
                sampled[0] |= {f"greedy_{key}": best[first // times][key] for key in _GREEDY}
            problems.append(sampled)
    return problems


def _repeated(dataset: Any, times: int) -> dict[str, list[Any]]:
    """The columns of `dataset`, each row so many times in a row: one call of many rollouts costs less than many."""
    columns = {name: dataset[name] for name in dataset.column_names}
    return {
        name: [dict(value) if isinstance(value, dict) else value for value in column for _ in range(times)]
        for name, column in columns.items()
    }


_GREEDY = ("completion", "completion_tokens", "reward", "correct")
"""What is kept of a greedy answer's record."""


def rollout_records(outputs: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` rollouts of verifiers' `GenerateOutputs` as JSON: what was asked, answered, and paid."""
    correct = outputs.metrics.get("accuracy")
    return [
        {
            "task": task_of(outputs.info[i]),
            **_level(outputs.info[i]),
            "question": _text(outputs.prompt[i]),
            "answer": outputs.answer[i],
            "completion": _text(outputs.completion[i]),
            "completion_tokens": _completion_tokens(outputs.state[i]),
            "truncated": _truncated(outputs.state[i]),
            "reward": outputs.reward[i],
            "correct": None if correct is None else correct[i] == 1.0,
            **_score(outputs.state[i]),
        }
        for i in range(len(outputs.prompt))[:limit]
    ]


def _score(state: Any) -> dict[str, str]:
    """Status of the answer, and why if it could not be graded; nothing in other environments."""
    rollout = kept_rollout(state)
    if rollout is None:
        return {}
    return {"status": rollout.score.status, **({"detail": rollout.score.detail} if rollout.score.detail else {})}


def accuracies(outputs: Any) -> dict[str, float]:
    """`accuracy` and, for mixtures, `accuracy/<task>` of verifiers' `GenerateOutputs`; empty if the rubric has none."""
    correct = outputs.metrics.get("accuracy")
    if not correct:
        return {}
    by_task: dict[str, list[float]] = {}
    for info, value in zip(outputs.info, correct, strict=True):
        by_task.setdefault(task_of(info), []).append(value)
    result = {"accuracy": sum(correct) / len(correct)}
    if len(by_task) > 1:
        result |= {f"accuracy/{task}": sum(values) / len(values) for task, values in sorted(by_task.items())}
    return result


def task_of(info: Any) -> str:
    """The task a row belongs to; "default" for rows of other environments."""
    return str(info.get("rg_task", "default")) if isinstance(info, dict) else "default"


def _level(info: Any) -> dict[str, Any]:
    """The level that a curriculum asked the question at; nothing without one."""
    return {"level": int(info[LEVEL])} if isinstance(info, dict) and LEVEL in info else {}


def _text(messages: Any) -> str:
    return messages if isinstance(messages, str) else (messages[-1]["content"] or "") if messages else ""


def _completion_tokens(state: dict[str, Any]) -> int | None:
    usages = [getattr(response, "usage", None) for response in state.get("responses", [])]
    known = [each.completion_tokens for each in usages if each is not None]
    return sum(known) if known and len(known) == len(usages) else None


def _truncated(state: Any) -> bool | None:
    """Whether the token limit ended the answer; None where the server does not say."""
    return usage(state)[1] if isinstance(state, Mapping) else None
