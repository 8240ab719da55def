"""Which split a question belongs to: decided by the question itself, so that splits are disjoint by construction.

Reasoning Gym draws item `i` of seed `s` from `Random(s + i)`, so that seeds 1 and 2 give the same items shifted by one,
and small tasks repeat their questions under any seed. Here the hash of the question's text decides: a fixed quarter of
all questions is for evaluation, the rest is for training. No choice of seeds, sizes, configs or mixtures can put one
question on both sides, in this run or between any two runs.
"""

import hashlib
from typing import Literal

Split = Literal["train", "eval"]

EVAL_SHARE = 0.25
"""Share of all questions that belongs to the evaluation split."""


def question_hash(question: str) -> str:
    """Hex SHA-256 of the question's text, blind to the white space around it."""
    return hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).hexdigest()


def split_of(question: str) -> Split:
    """The split that `question` belongs to, today and in every other run."""
    return "eval" if int(question_hash(question)[:8], 16) < EVAL_SHARE * 2**32 else "train"
