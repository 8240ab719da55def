"""Rollouts as records: what was asked, answered and paid, in JSON values."""

from collections.abc import Mapping
from typing import Any

from rg_env.adapters.v0_rubric import kept_rollout, usage
from rg_env.training.curriculum import LEVEL


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


def task_of(info: Any) -> str:
    """The task a row belongs to; "default" for rows of other environments."""
    return str(info.get("rg_task", "default")) if isinstance(info, dict) else "default"


def _score(state: Any) -> dict[str, str]:
    """Status of the answer, and why if it could not be graded; nothing in other environments."""
    rollout = kept_rollout(state)
    if rollout is None:
        return {}
    return {"status": rollout.score.status, **({"detail": rollout.score.detail} if rollout.score.detail else {})}


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
