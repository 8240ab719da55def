"""The built-in rewards.

Length rewards use the number of tokens that the server reports. If the server does not report this number, length
rewards estimate it with `CHARACTERS_PER_TOKEN`, except for `brevity`, which raises an error.
"""

import math
import re

from rg_env.core.grading.scoring import Rollout, partial_score
from rg_env.core.rewards.registry import reward
from rg_env.errors import RewardError

BREVITY_TOKENS = 512
"""Completion length in tokens at which `brevity` reaches 0."""
CHARACTERS_PER_TOKEN = 4.0
_TAG = re.compile(r"</?(?:think|answer)>")
_THINK_THEN_ANSWER = ["<think>", "</think>", "<answer>", "</answer>"]


@reward
def correctness(rollout: Rollout) -> float:
    """Return the grade: 1 if the answer is correct, otherwise 0. With `grading="partial"` or `"upstream"`, the grade
    can be partial credit in [0, 1]."""
    return rollout.score.value


@reward
def partial(rollout: Rollout) -> float:
    """Return partial credit in [0, 1] for real progress, such as correct cells in a sudoku, regardless of `grading`.
    For your own data, this reward is the same as `correctness`."""
    if rollout.score.progress is not None:
        return rollout.score.progress
    if "rg_task" not in rollout.info:  # the row is from the user's own data
        return correctness(rollout)
    return partial_score(rollout.extraction, rollout.info)


@reward("format")
def answer_format(rollout: Rollout) -> float:
    """Return 1 for a completion with a well-formed, non-blank answer, and 0 for any other completion."""
    return float(rollout.extraction.status == "ok")


@reward
def think_format(rollout: Rollout, *, opened: bool = False) -> float:
    """Return 1 for one <think> block followed by one non-blank <answer> block, and 0 for any other completion.

    Only whitespace may precede or separate the blocks. Text may follow the blocks, but it must not contain <think> or
    <answer> tags.

    If the chat template ends the prompt with <think>, as it does for R1-style models, the completion starts inside the
    block. The trainer and evaluations of local models detect this. Set `opened` in other frameworks.
    """
    text = f"<think>{rollout.text}" if opened or _opens(rollout) else rollout.text
    tags = list(_TAG.finditer(text))
    if [tag.group() for tag in tags] != _THINK_THEN_ANSWER or rollout.extraction.status != "ok":
        return 0.0
    before, between = text[: tags[0].start()], text[tags[1].end() : tags[2].start()]
    return float(not before.strip() and not between.strip())


@reward
def tag_count(rollout: Rollout, *, opened: bool = False) -> float:
    """Return 0.25 for each of the tags <think>, </think>, <answer> and </answer> that occurs exactly once, at any
    position.

    `opened` has the same meaning as in `think_format`.
    """
    tags = [*(["<think>"] if opened or _opens(rollout) else []), *_TAG.findall(rollout.text)]
    return sum(tags.count(tag) == 1 for tag in _THINK_THEN_ANSWER) / 4


def _opens(rollout: Rollout) -> bool:
    """Whether the prompt ends with <think>."""
    return rollout.prefix.rstrip().endswith("<think>")


@reward
def brevity(rollout: Rollout) -> float:
    """Return a value that falls linearly from 1 at 0 tokens to 0 at `BREVITY_TOKENS` for a correct answer, and 0 for
    any other answer.

    Raises `RewardError` if the answer is correct and the server did not report the number of completion tokens.
    """
    if rollout.score.status != "correct":
        return 0.0
    if rollout.completion_tokens is None:
        raise RewardError("the server reported no usage, so the number of completion tokens is unknown")
    return max(0.0, 1.0 - rollout.completion_tokens / BREVITY_TOKENS)


@reward
def length(rollout: Rollout, *, max_tokens: float = 512) -> float:
    """Return a value that falls linearly from 1 at 0 tokens to 0 at `max_tokens`, for any completion.

    This reward encourages guessing without reasoning, unless it is gated by `when: correct`.
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
    """Return a value that follows half a cosine wave from the `short` value at 0 tokens to the `long` value at
    `max_tokens`.

    Correct and wrong completions have separate values. By default, a short completion scores higher than a long one if
    it is correct, and lower if it is wrong. At `max_tokens` and above, the value is `exceeded`, or the `long` value if
    `exceeded` is None.

    Source: Yeo et al., 2025, arXiv:2502.03373, where the five values are r_0^c, r_L^c, r_0^w, r_L^w and r_e. The paper
    uses 2, 1, -10, 0 and -10. In rg_env, only `exceeded` defaults to the paper's value. The other defaults are within
    [-1, 1], like the values of other rewards.
    """
    used = _used(rollout, max_tokens)
    if used == 1.0 and exceeded is not None:
        return exceeded
    correct = rollout.score.status == "correct"
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return long + (short - long) * (1 + math.cos(math.pi * used)) / 2


@reward
def repetition_penalty(rollout: Rollout, *, ngram: float = 4) -> float:
    """Return the negated share of word n-grams that repeat earlier n-grams, in [-1, 0] (Yeo et al., 2025)."""
    words = rollout.text.split()
    size = max(1, int(ngram))
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


@reward
def overlong_penalty(rollout: Rollout, *, max_tokens: float = 512, margin: float = 128) -> float:
    """Return a value that is 0 up to `max_tokens - margin` and then falls linearly to -1 at `max_tokens`.

    This reward is the soft overlong punishment from DAPO (Yu et al., 2025, arXiv:2503.14476).
    """
    over = _length(rollout) - (max_tokens - margin)
    return -min(1.0, max(0.0, over / margin)) if margin > 0 else -float(over > 0)


def _length(rollout: Rollout) -> float:
    if rollout.completion_tokens is not None:
        return float(rollout.completion_tokens)
    return len(rollout.text) / CHARACTERS_PER_TOKEN


def _used(rollout: Rollout, max_tokens: float) -> float:
    return min(1.0, _length(rollout) / max_tokens) if max_tokens > 0 else 1.0
