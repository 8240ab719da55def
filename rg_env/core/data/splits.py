"""Assignment of problems to splits. The problem itself determines its split, so splits are disjoint by construction.

For seed `s`, Reasoning Gym draws item `i` from `Random(s + i)`. Seeds 1 and 2 therefore yield the same items shifted by
one, and tasks with few distinct questions repeat them under any seed. Many tasks also pose the same problem in several
wordings, orders or layouts. In rg_env, a hash of the problem determines the split (`core.data.problem_keys`). A fixed
quarter of all problems is for evaluation, and the rest is for training. No choice of seeds, sizes, configs or mixtures
can put a problem into both splits, within a run or across runs.

With `SplitBy` "question", a hash of the question's text determines the split. The same problem in two wordings may then
be in both splits.
"""

import hashlib
from typing import Literal

Split = Literal["train", "eval"]
SplitBy = Literal["problem", "question"]
OnFew = Literal["repeat", "cap", "error"]
"""What happens if a task has fewer distinct questions than requested. "repeat" fills a training split with repeated
questions, and reduces an evaluation split to the distinct ones. "cap" reduces both. "error" raises an error."""

EVAL_SHARE = 0.25
"""Fraction of all problems that are in the evaluation split."""


def question_hash(question: str) -> str:
    """Return the hex SHA-256 of the question's text without surrounding whitespace."""
    return hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).hexdigest()


def split_of(digest: str) -> Split:
    """Return the split for this problem key or question hash. The split is the same in all runs."""
    return "eval" if int(digest[:8], 16) < EVAL_SHARE * 2**32 else "train"
