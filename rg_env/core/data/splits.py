"""Which split a problem belongs to: decided by the problem itself, so that splits are disjoint by construction.

Reasoning Gym draws item `i` of seed `s` from `Random(s + i)`, so that seeds 1 and 2 give the same items shifted by one,
and small tasks repeat their questions under any seed. Many tasks also ask one problem in several words, orders or
layouts. Here a hash of the problem decides (`core.data.problem_keys`): a fixed quarter of all problems is for
evaluation, the rest is for training. No choice of seeds, sizes, configs or mixtures can put one problem on both sides,
in this run or between any two runs.

`SplitBy` "question" divides by the hash of the question's text instead: two questions that ask the same problem in
other words may then be on different sides.
"""

import hashlib
from typing import Literal

Split = Literal["train", "eval"]
SplitBy = Literal["problem", "question"]

EVAL_SHARE = 0.25
"""Share of all problems that belongs to the evaluation split."""


def question_hash(question: str) -> str:
    """Hex SHA-256 of the question's text, blind to the white space around it."""
    return hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).hexdigest()


def split_of(digest: str) -> Split:
    """The split of the problem with this key, or of the question with this hash, today and in every other run."""
    return "eval" if int(digest[:8], 16) < EVAL_SHARE * 2**32 else "train"
