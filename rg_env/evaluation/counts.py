"""What has become of each rollout, in a few bytes each: a hundred thousand take some megabytes.

Rollouts are told apart by model, task, question and number. A record that comes again (a failed call, asked anew)
takes the place of the first.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from rg_env.core.grading.scoring import Status
from rg_env.core.statistics import guess_adjusted, mean_and_error, mean_and_interval, pass_at_k, share_interval
from rg_env.errors import InputError
from rg_env.evaluation.results import Interval, ModelScores, Usage

FAILED = "failed"
"""The status of a call without an answer."""
STATUSES: tuple[str, ...] = (*get_args(Status), FAILED)
_NOT_YET, _LEFT_OUT = 0, 255


class Tally:
    """One model on one task.

    Args:
        hashes: of the questions.
        times: answers to each.
        left_out: hashes of questions that the model is not asked.
    """

    def __init__(self, hashes: Sequence[str], times: int, left_out: frozenset[str] = frozenset()):
        self.times, self.hashes = times, hashes
        self._index = {each: number for number, each in enumerate(hashes)}
        slots = len(hashes) * times
        self._status = bytearray(slots)
        self._reward = array("d", bytes(8 * slots))
        self._truncated = bytearray(slots)  # 0: not known, 1: no, 2: yes
        self._tokens = {kind: array("q", [-1]) * slots for kind in ("prompt_tokens", "completion_tokens")}
        self.left_out = 0
        for number, each in enumerate(hashes):
            if each in left_out:
                self.left_out += 1
                self._status[number * times : (number + 1) * times] = bytes([_LEFT_OUT]) * times

    def put(self, record: Mapping[str, Any]) -> bool:
        """Count a record of `rollouts.jsonl`; False if it is of no rollout that was asked for."""
        number, rollout = self._index.get(record["row"]), record["rollout"]
        if number is None or not 0 <= rollout < self.times or self._status[number * self.times] == _LEFT_OUT:
            return False
        slot = number * self.times + rollout
        self._status[slot] = STATUSES.index(record["status"]) + 1
        self._reward[slot] = record["reward"]
        self._truncated[slot] = 0 if record["truncated"] is None else 1 + record["truncated"]
        for kind, tokens in self._tokens.items():
            tokens[slot] = -1 if record[kind] is None else record[kind]
        return True

    def open(self, *, failed_too: bool = True) -> list[tuple[int, int]]:
        """Question and number of each rollout that is still to be made; `failed_too`: calls that failed once more."""
        again = (_NOT_YET, STATUSES.index(FAILED) + 1) if failed_too else (_NOT_YET,)
        return [divmod(slot, self.times) for slot, status in enumerate(self._status) if status in again]

    @property
    def asked(self) -> int:
        """Rollouts that are to be made, or were."""
        return (len(self.hashes) - self.left_out) * self.times

    @property
    def made(self) -> int:
        """Rollouts that there are, failed calls among them."""
        return sum(status not in (_NOT_YET, _LEFT_OUT) for status in self._status)

    @property
    def failed(self) -> int:
        return self._status.count(STATUSES.index(FAILED) + 1)

    def correct(self) -> dict[str, list[bool]]:
        """By question that was asked, whether each answer was right."""
        right = STATUSES.index("correct") + 1
        rows = enumerate(self.hashes)
        return {each: [status == right for status in part] for number, each in rows if (part := self._part(number))}

    def scores(self, floor: float | None) -> ModelScores:
        """What it came to.

        Raises:
            InputError: no question is left that the model was not trained on.
        """
        if not self.asked:
            raise InputError(
                "no question is left that the model was not trained on: take another eval_seed, or divide questions as "
                "its training did (split_by)"
            )
        shares = [[float(each) for each in answers] for answers in self.correct().values()]
        accuracy, _ = mean_and_error(shares)
        rewards = self._by_question(self._reward)
        reward, _ = mean_and_error(rewards)
        counts = Counter(status for status in self._status if status not in (_NOT_YET, _LEFT_OUT))
        known = [each == 2 for each in self._truncated if each]
        lengths = [tokens for tokens in self._tokens["completion_tokens"] if tokens >= 0]
        return ModelScores(
            n=len(shares),
            rollouts=self.asked,
            accuracy=accuracy,
            accuracy_interval=share_interval(shares),
            guess_adjusted=None if floor is None else guess_adjusted(accuracy, floor),
            reward=reward,
            reward_interval=_reward_interval(rewards, reward),
            pass_at_k=self._passes(shares),
            mean_completion_tokens=sum(lengths) / len(lengths) if lengths else None,
            truncated=sum(known) / len(known) if known else None,
            status={name: counts[code] / self.asked for code, name in enumerate(STATUSES, 1) if counts[code]},
            failed=self.failed,
            left_out=self.left_out,
        )

    def usage(self, price: tuple[float, float] | None) -> Usage:
        """Tokens, and what they cost; `price`: of a million tokens of prompts, and of answers."""
        totals = {
            kind: sum(known) if (known := [each for each in tokens if each >= 0]) else None
            for kind, tokens in self._tokens.items()
        }
        return usage_of(totals["prompt_tokens"], totals["completion_tokens"], price)

    def _part(self, number: int) -> bytearray | None:
        """The statuses of a question's answers; None: it is left out."""
        part = self._status[number * self.times : (number + 1) * self.times]
        return None if part[0] == _LEFT_OUT else part

    def _by_question(self, values: Sequence[float]) -> list[list[float]]:
        return [
            list(values[number * self.times : (number + 1) * self.times])
            for number in range(len(self.hashes))
            if self._part(number)
        ]

    def _passes(self, shares: list[list[float]]) -> dict[str, float]:
        powers = [2**power for power in range(1, self.times.bit_length()) if 2**power <= self.times]
        return {
            f"pass@{k}": sum(pass_at_k(self.times, int(sum(each)), k) for each in shares) / len(shares) for k in powers
        }


def usage_of(prompt_tokens: int | None, completion_tokens: int | None, price: tuple[float, float] | None) -> Usage:
    """With the cost, where all is known; `price`: of a million tokens of prompts, and of answers."""
    cost = None
    if price is not None and prompt_tokens is not None and completion_tokens is not None:
        cost = (price[0] * prompt_tokens + price[1] * completion_tokens) / 1e6
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost)


def _reward_interval(rewards: list[list[float]], mean: float) -> Interval:
    """Of the means of questions, which all have equally many answers."""
    _, half = mean_and_interval([sum(each) / len(each) for each in rewards])
    return (mean - (half or 0.0), mean + (half or 0.0))
