"""Rewards: pure functions of a rollout, named, weighted and summed. The built-in ones, and how to add one's own.

    @reward                       # or @reward("short_name")
    def ends_well(rollout):
        return float(rollout.text.endswith("</answer>"))

    rewards=[("correctness", 1.0), ("ends_well", 0.2), some_function,
             {"name": "length", "weight": 0.1, "when": "correct", "options": {"max_tokens": 256}}]

Lengths are in tokens where the server reports them, else estimated at `CHARACTERS_PER_TOKEN` (`brevity` raises then).
"""

import math
import re

from rg_env.core.grading.rollout import Rollout as Rollout
from rg_env.core.grading.scoring import partial_score
from rg_env.core.rewards.registry import WeightedReward as WeightedReward
from rg_env.core.rewards.registry import call_reward as call_reward
from rg_env.core.rewards.registry import check_offered as check_offered
from rg_env.core.rewards.registry import checked_value as checked_value
from rg_env.core.rewards.registry import describe as describe
from rg_env.core.rewards.registry import get_reward as get_reward
from rg_env.core.rewards.registry import resolve_rewards as resolve_rewards
from rg_env.core.rewards.registry import reward as reward
from rg_env.errors import RewardError

BREVITY_TOKENS = 512
"""Completion length, in tokens, from which `brevity` pays nothing."""
CHARACTERS_PER_TOKEN = 4.0
_TAG = re.compile(r"</?(?:think|answer)>")
_THINK_THEN_ANSWER = ["<think>", "</think>", "<answer>", "</answer>"]


@reward
def correctness(rollout: Rollout) -> float:
    """The score's value: 1 if correct, else 0; with `grading="partial"`, the part that is right."""
    return rollout.score.value


@reward
def partial(rollout: Rollout) -> float:
    """Real progress, in [0, 1], whatever the environment's grading: right cells of a sudoku, a sorted prefix."""
    if rollout.score.progress is not None:
        return rollout.score.progress
    return partial_score(rollout.extraction, rollout.info)


@reward("format")
def answer_format(rollout: Rollout) -> float:
    """1 for a reply with a well-formed answer that is not blank, else 0."""
    return float(rollout.extraction.status == "ok")


@reward
def think_format(rollout: Rollout, *, opened: bool = False) -> float:
    """1 for one <think> block and then one <answer> block that is not blank, with nothing but white space before and
    between them, else 0. Text may follow; an extra tag costs it.

    `opened`: the chat template ends the prompt with <think>, as those of R1-like models do, so that the reply begins
    inside of the block.
    """
    text = f"<think>{rollout.text}" if opened else rollout.text
    tags = list(_TAG.finditer(text))
    if [tag.group() for tag in tags] != _THINK_THEN_ANSWER or rollout.extraction.status != "ok":
        return 0.0
    before, between = text[: tags[0].start()], text[tags[1].end() : tags[2].start()]
    return float(not before.strip() and not between.strip())


@reward
def tag_count(rollout: Rollout, *, opened: bool = False) -> float:
    """A quarter for each of <think>, </think>, <answer> and </answer> that is in the reply exactly once, wherever it is
    and whatever is inside. `opened`: as for `think_format`."""
    tags = [*(["<think>"] if opened else []), *_TAG.findall(rollout.text)]
    return sum(tags.count(tag) == 1 for tag in _THINK_THEN_ANSWER) / 4


@reward
def brevity(rollout: Rollout) -> float:
    """For correct answers only: falls in a straight line from 1 at 0 tokens to 0 at `BREVITY_TOKENS`.

    Raises `RewardError` if the server did not report how many tokens the completion has.
    """
    if rollout.score.status != "correct":
        return 0.0
    if rollout.completion_tokens is None:
        raise RewardError("the server reported no usage, so the number of completion tokens is not known")
    return max(0.0, 1.0 - rollout.completion_tokens / BREVITY_TOKENS)


@reward
def length(rollout: Rollout, *, max_tokens: float = 512) -> float:
    """For any reply: falls in a straight line from 1 at 0 tokens to 0 at `max_tokens`. Pays for blurting unless gated
    by `when: correct`."""
    return 1.0 - _used(rollout, max_tokens)


@reward
def cosine(
    rollout: Rollout,
    *,
    max_tokens: float = 512,
    correct_short: float = 1.0,
    correct_long: float = 0.5,
    wrong_short: float = -1.0,
    wrong_long: float = -0.5,
    exceeded: float | None = -10.0,
) -> float:
    """Follows half a cosine from the `short` value at 0 tokens towards the `long` one at `max_tokens`, for right and
    wrong replies separately: short is better when right, and worse when wrong. From `max_tokens` on, right or not, it
    is `exceeded`; None means the `long` value there too.

    Source: Yeo et al., 2025, arXiv:2502.03373, where the five values are r_0^c, r_L^c, r_0^w, r_L^w and r_e. The paper
    has 2, 1, -10, 0 and -10 for them; only the last is the default here, since other rewards stay within [-1, 1].
    """
    used = _used(rollout, max_tokens)
    if used == 1.0 and exceeded is not None:
        return exceeded
    correct = rollout.score.status == "correct"
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return long + (short - long) * (1 + math.cos(math.pi * used)) / 2


@reward
def repetition_penalty(rollout: Rollout, *, ngram: float = 4) -> float:
    """In [-1, 0]: minus the share of n-grams of words that were in the reply before (Yeo et al., 2025)."""
    words = rollout.text.split()
    size = max(1, int(ngram))
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


@reward
def overlong_penalty(rollout: Rollout, *, max_tokens: float = 512, margin: float = 128) -> float:
    """In [-1, 0]: 0 up to `max_tokens - margin`, then falling in a straight line to -1 at `max_tokens` (soft overlong
    punishment, Yu et al., 2025, DAPO, arXiv:2503.14476)."""
    over = _length(rollout) - (max_tokens - margin)
    return -min(1.0, max(0.0, over / margin)) if margin > 0 else -float(over > 0)


def _length(rollout: Rollout) -> float:
    """Tokens of the completion, estimated where not known."""
    if rollout.completion_tokens is not None:
        return float(rollout.completion_tokens)
    return len(rollout.text) / CHARACTERS_PER_TOKEN


def _used(rollout: Rollout, max_tokens: float) -> float:
    """Share of `max_tokens` that was used, in [0, 1]."""
    return min(1.0, _length(rollout) / max_tokens) if max_tokens > 0 else 1.0
