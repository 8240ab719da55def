"""A rollout as it stands in `rollouts.jsonl`: what was asked, answered, extracted, scored and paid.

{"model", "task": name or label, "row": hash of the question, "problem": its number, "rollout": number of the answer,
 "question", "answer": the gold one, "completion", "reasoning", "prompt_tokens", "completion_tokens", "truncated",
 "extracted", "score", "correct", "reward", "rewards": {name: value}, "status", "detail", "error", "seconds"}

A call that failed for good is a wrong answer, with the status "failed" and its reason under `error`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rg_env.core.extraction import extract
from rg_env.core.rewards import Rollout, WeightedReward
from rg_env.core.scoring import score_extraction_async
from rg_env.evaluation.asking import Reply
from rg_env.evaluation.questions import TaskQuestions
from rg_env.evaluation.tally import FAILED

_FAILED: dict[str, Any] = {
    "completion": "",
    "reasoning": None,
    "prompt_tokens": None,
    "completion_tokens": None,
    "truncated": None,
    "extracted": None,
    "score": 0.0,
    "correct": False,
    "reward": 0.0,
    "status": FAILED,
    "detail": "",
}


class Records:
    """Makes the records of an evaluation with these rewards."""

    def __init__(self, rewards: Sequence[WeightedReward]):
        self._rewards = rewards

    async def of(
        self,
        model: str,
        task: TaskQuestions,
        number: int,
        rollout: int,
        messages: list[dict[str, Any]],
        reply: Reply | None,
        error: str | None,
    ) -> dict[str, Any]:
        """The record of an answer to question `number`; without a `reply`, of the `error` of its call.

        Raises:
            RewardError: a reward raised or returned no finite number.
        """
        row = task.rows[number]
        asked = {
            "model": model,
            "task": task.name,
            "row": task.hashes[number],
            "problem": number,
            "rollout": rollout,
            "question": row["question"],
            "answer": row["answer"],
        }
        if reply is None:
            return {**asked, **_FAILED, "rewards": {each.name: 0.0 for each in self._rewards}, "error": error}
        score = await score_extraction_async(extract(reply.text), row["info"])
        made = Rollout.of(
            prompt=messages,
            completion=reply.text,
            answer=row["answer"],
            info=row["info"],
            completion_tokens=reply.completion_tokens,
            truncated=reply.truncated,
            score=score,
        )
        paid = self._paid(made)
        return {
            **asked,
            "completion": reply.text,
            "reasoning": reply.reasoning,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "truncated": reply.truncated,
            "extracted": score.answer,
            "score": score.value,
            "correct": score.status == "correct",
            "reward": sum(each.weight * paid[each.name] for each in self._rewards),
            "rewards": paid,
            "status": score.status,
            "detail": score.detail or (f"refusal: {reply.refusal}" if reply.refusal else ""),
            "error": None,
        }

    def _paid(self, rollout: Rollout) -> dict[str, float]:
        available: Mapping[str, Any] = {
            "prompt": rollout.prompt,
            "completion": [{"role": "assistant", "content": rollout.text}],
            "answer": rollout.answer,
            "state": {},
            "info": rollout.info,
            "parser": None,
        }
        return {each.name: each.value(rollout, available) for each in self._rewards}
