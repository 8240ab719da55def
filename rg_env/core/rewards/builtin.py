"""Built-in rewards. A reward is a named, pure function of a rollout; rewards are weighted and summed.

Add your own, and choose rewards, as follows:

    @reward                       # or @reward("short_name")
    def ends_well(rollout):
        return float(rollout.text.endswith("</answer>"))

    rewards=[("correctness", 1.0), ("ends_well", 0.2), some_function,
             {"name": "length", "weight": 0.1, "when": "correct", "options": {"max_tokens": 256}}]

Lengths are in tokens if the server reports them, and otherwise estimated with `CHARACTERS_PER_TOKEN` (except by
`brevity`, which raises).
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
"""Completion length in tokens at which `brevity` reaches 0."""
CHARACTERS_PER_TOKEN = 4.0
_TAG = re.compile(r"</?(?:think|answer)>")
_THINK_THEN_ANSWER = ["<think>", "</think>", "<answer>", "</answer>"]


@reward
def correctness(rollout: Rollout) -> float:
    """The grade: 1 if correct, else 0; with `grading="partial"`, partial credit in [0, 1]."""
    return rollout.score.value


@reward
def partial(rollout: Rollout) -> float:
    """Partial credit in [0, 1] for real progress, such as right cells of a sudoku, independent of `grading`."""
    if rollout.score.progress is not None:
        return rollout.score.progress
    return partial_score(rollout.extraction, rollout.info)


@reward("format")
def answer_format(rollout: Rollout) -> float:
    """1 for a completion with a well-formed answer that is not blank, else 0."""
    return float(rollout.extraction.status == "ok")


@reward
def think_format(rollout: Rollout, *, opened: bool = False) -> float:
    """1 for one <think> block followed by one <answer> block that is not blank, else 0.

    Only white space may precede or separate the blocks. Text may follow, but no further tag.

    `opened`: the chat template ends the prompt with <think>, as for R1-like models, so the completion starts inside the
    block.
    """
    text = f"<think>{rollout.text}" if opened else rollout.text
    tags = list(_TAG.finditer(text))
    if [tag.group() for tag in tags] != _THINK_THEN_ANSWER or rollout.extraction.status != "ok":
        return 0.0
    before, between = text[: tags[0].start()], text[tags[1].end() : tags[2].start()]
    return float(not before.strip() and not between.strip())


@reward
def tag_count(rollout: Rollout, *, opened: bool = False) -> float:
    """0.25 for each of <think>, </think>, <answer> and </answer> that occurs exactly once, at any position.

    `opened`: as in `think_format`.
    """
    tags = [*(["<think>"] if opened else []), *_TAG.findall(rollout.text)]
    return sum(tags.count(tag) == 1 for tag in _THINK_THEN_ANSWER) / 4


@reward
def brevity(rollout: Rollout) -> float:
    """For correct answers only: falls linearly from 1 at 0 tokens to 0 at `BREVITY_TOKENS`.

    Raises `RewardError` if the server did not report the number of completion tokens.
    """
    if rollout.score.status != "correct":
        return 0.0
    if rollout.completion_tokens is None:
        raise RewardError("the server reported no usage, so the number of completion tokens is unknown")
    return max(0.0, 1.0 - rollout.completion_tokens / BREVITY_TOKENS)


@reward
def length(rollout: Rollout, *, max_tokens: float = 512) -> float:
    """Falls linearly from 1 at 0 tokens to 0 at `max_tokens`, for any completion.

    Rewards guessing without reasoning unless gated by `when: correct`.
    """
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
    """Length reward along half a cosine, from the `short` value at 0 tokens to the `long` value at `max_tokens`.

    Right and wrong completions have separate values: shorter is better if right, and worse if wrong. From `max_tokens`
    up the value is `exceeded` in both cases; None keeps the `long` value.

    Source: Yeo et al., 2025, arXiv:2502.03373, where the five values are r_0^c, r_L^c, r_0^w, r_L^w and r_e. The paper
    uses 2, 1, -10, 0 and -10; only the last is the default here, because other rewards stay within [-1, 1].
    """
    used = _used(rollout, max_tokens)
    if used == 1.0 and exceeded is not None:
        return exceeded
    correct = rollout.score.status == "correct"
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return long + (short - long) * (1 + math.cos(math.pi * used)) / 2


@reward
def repetition_penalty(rollout: Rollout, *, ngram: float = 4) -> float:
    """Minus the share of word n-grams that repeat earlier ones, in [-1, 0] (Yeo et al., 2025)."""
    words = rollout.text.split()
    size = max(1, int(ngram))
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


@reward
def overlong_penalty(rollout: Rollout, *, max_tokens: float = 512, margin: float = 128) -> float:
    """0 up to `max_tokens - margin`, then falling linearly to -1 at `max_tokens`.

    Soft overlong punishment of DAPO (Yu et al., 2025, arXiv:2503.14476).
    """
    over = _length(rollout) - (max_tokens - margin)
    return -min(1.0, max(0.0, over / margin)) if margin > 0 else -float(over > 0)


def _length(rollout: Rollout) -> float:
    """Number of completion tokens, estimated if unknown."""
    if rollout.completion_tokens is not None:
        return float(rollout.completion_tokens)
    return len(rollout.text) / CHARACTERS_PER_TOKEN


def _used(rollout: Rollout, max_tokens: float) -> float:
    """Share of `max_tokens` used by the completion, in [0, 1]."""
    return min(1.0, _length(rollout) / max_tokens) if max_tokens > 0 else 1.0
