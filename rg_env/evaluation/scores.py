"""Answers by question, and every figure computed from them.

tally = Tally(hashes, times=4)
tally.put(record)                                   # of `evaluation.records`; a later one replaces an earlier one
scores_of(tally.questions())
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from rg_env.core.grading.scoring import Status
from rg_env.core.statistics import guess_adjusted, mean_and_error, pass_at_k, share_interval, t_critical
from rg_env.evaluation.results import Scores, Usage

FAILED = "failed"
"""Status of a call without an answer."""
STATUSES: tuple[str, ...] = (*get_args(Status), FAILED)


class Answer(NamedTuple):
    """What counts of one answer."""

    correct: bool | None
    reward: float
    status: str | None
    truncated: bool | None
    prompt_tokens: int | None
    completion_tokens: int | None


class Tally:
    """The answers of one model to some questions: one record for each question (by its hash) and rollout number.

    Args:
        hashes: those of the questions.
        times: answers to each.
        left_out: indices of questions that the model is not asked.
    """

    def __init__(self, hashes: Sequence[str], times: int, left_out: frozenset[int] = frozenset()):
        self.hashes, self.times, self.left_out = hashes, times, left_out
        self._answers: dict[tuple[int, int], Answer] = {}

    def put(self, record: Mapping[str, Any]) -> bool:
        """Count a record; False if no such answer was asked for."""
        number, rollout = record["problem"], record["rollout"]
        if not (0 <= number < len(self.hashes) and 0 <= rollout < self.times) or number in self.left_out:
            return False
        if self.hashes[number] != record["row"]:
            return False
        self._answers[number, rollout] = Answer(*(record[name] for name in Answer._fields))
        return True

    def open(self) -> list[tuple[int, int]]:
        """Question and rollout number of each answer still to be made, failed calls included."""
        return [
            (number, rollout)
            for number in self.asked_questions()
            for rollout in range(self.times)
            if (answer := self._answers.get((number, rollout))) is None or answer.status == FAILED
        ]

    def asked_questions(self) -> list[int]:
        """Indices of the questions that are not left out."""
        return [number for number in range(len(self.hashes)) if number not in self.left_out]

    @property
    def asked(self) -> int:
        """Answers wanted in all."""
        return (len(self.hashes) - len(self.left_out)) * self.times

    @property
    def made(self) -> int:
        """Answers so far, failed calls included."""
        return len(self._answers)

    @property
    def failed(self) -> int:
        """Calls without an answer."""
        return sum(answer.status == FAILED for answer in self._answers.values())

    def answers(self, number: int) -> list[Answer]:
        """Those to one question, in order; empty if it was left out."""
        found = (self._answers.get((number, rollout)) for rollout in range(self.times))
        return [answer for answer in found if answer is not None]


def scores_of(
    questions: Sequence[Sequence[Answer]],
    greedy: Sequence[Answer] = (),
    *,
    floor: float | None = None,
    left_out: int = 0,
) -> Scores:
    """The scores of sampled answers by question, and of greedy ones."""
    answers = [answer for question in questions for answer in question]
    right = _values(questions, "correct")
    accuracy, accuracy_se = _mean(right)
    rewards = _values(questions, "reward")
    reward, reward_se = _mean(rewards)
    greedy_accuracy, greedy_accuracy_se = _mean(_values([[answer] for answer in greedy], "correct"))
    greedy_reward, greedy_reward_se = _mean(_values([[answer] for answer in greedy], "reward"))
    tokens, tokens_se = _mean(_values(questions, "completion_tokens"))
    truncated, truncated_se = _mean(_values(questions, "truncated"))
    passes = _passes(right)
    statuses = Counter(answer.status for answer in answers if answer.status is not None)
    return Scores(
        n=len(questions),
        answers=len(answers),
        accuracy=accuracy,
        accuracy_se=accuracy_se,
        accuracy_interval=None if accuracy is None else share_interval(right),
        guess_adjusted=None if floor is None or accuracy is None else guess_adjusted(accuracy, floor),
        greedy_accuracy=greedy_accuracy,
        greedy_accuracy_se=greedy_accuracy_se,
        reward=reward,
        reward_se=reward_se,
        reward_interval=_interval(reward, reward_se, len(questions)),
        greedy_reward=greedy_reward,
        greedy_reward_se=greedy_reward_se,
        pass_at_k={name: mean for name, (mean, _) in passes.items()},
        pass_at_k_se={name: error for name, (_, error) in passes.items()},
        mean_completion_tokens=tokens,
        mean_completion_tokens_se=tokens_se,
        truncated=truncated,
        truncated_se=truncated_se,
        status={name: statuses[name] / len(answers) for name in STATUSES if statuses[name]},
        failed=statuses[FAILED],
        left_out=left_out,
    )


def usage_of(answers: Iterable[Mapping[str, Any]], prices: tuple[float, float] | None) -> Usage:
    """Tokens of `answers` (records), and their cost at `prices` of a million tokens of prompts and of completions."""
    totals: dict[str, int | None] = {"prompt_tokens": None, "completion_tokens": None}
    for answer in answers:
        for kind in totals:
            if answer[kind] is not None:
                totals[kind] = (totals[kind] or 0) + answer[kind]
    prompts, completions = totals["prompt_tokens"], totals["completion_tokens"]
    cost = None
    if prices is not None and prompts is not None and completions is not None:
        cost = (prices[0] * prompts + prices[1] * completions) / 1e6
    return Usage(**totals, cost=cost)


def _values(questions: Sequence[Sequence[Answer]], name: str) -> list[list[float]]:
    """By question, the values that are known."""
    found = [[getattr(answer, name) for answer in question] for question in questions]
    return [[float(value) for value in values if value is not None] for values in found]


def _mean(values: Sequence[Sequence[float]]) -> tuple[float, float] | tuple[None, None]:
    return mean_and_error(values) if any(values) else (None, None)


def _interval(mean: float | None, error: float | None, n: int) -> tuple[float, float] | None:
    if mean is None or error is None:
        return None
    half = t_critical(n - 1) * error if n > 1 else 0.0
    return mean - half, mean + half


def _passes(right: Sequence[Sequence[float]]) -> dict[str, tuple[float, float]]:
    times = min(map(len, right), default=0)
    powers = [2**power for power in range(times.bit_length()) if times > 1]
    return {f"pass@{k}": mean_and_error([[pass_at_k(len(each), int(sum(each)), k)] for each in right]) for k in powers}
