"""One completion for one row: what rewards look at. Its answer is extracted and scored when first asked for, once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rg_env.core.grading.extraction import Extraction, completion_text, extract
from rg_env.core.grading.scoring import UNNAMED_TASK as UNNAMED_TASK
from rg_env.core.grading.scoring import Score, score_extraction, score_match


@dataclass(frozen=True)
class Rollout:
    """One completion for one row."""

    prompt: Any
    """Chat messages, or text."""
    text: str
    """The completion's text."""
    answer: str
    """The gold answer; empty if the row has none."""
    info: Mapping[str, Any]
    """The row's `info`: what grading needs."""
    completion_tokens: int | None = None
    """As the server reported it; None if it did not."""
    truncated: bool | None = None
    """Whether the completion ended because of the token limit; None if not known."""
    token_ids: Sequence[int] = ()
    """Sampled tokens, the end token included; empty if not known."""
    logprobs: Sequence[float] = ()
    """Natural-log probabilities of `token_ids` in the distribution they were sampled from; empty if not known."""
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row, with all columns that the user keeps there; empty if not known."""

    @classmethod
    def of(
        cls,
        *,
        prompt: object,
        completion: object,
        answer: str,
        info: Mapping[str, Any],
        completion_tokens: int | None = None,
        truncated: bool | None = None,
        score: Score | None = None,
    ) -> "Rollout":
        """A rollout of `completion` in any form (text, messages), scored at once, or with its known `score`.

        Raises `InputError` if `info` is not the info of a row.
        """
        rollout = cls(prompt, completion_text(completion), answer, info, completion_tokens, truncated)
        return rollout.with_score(score or rollout.score)

    @property
    def task(self) -> str:
        """The Reasoning Gym task; `UNNAMED_TASK` for rows of other environments."""
        return str(self.info.get("rg_task", UNNAMED_TASK))

    # Not `cached_property`: up to Python 3.11 it has one lock for all rollouts, which would be graded one by one.
    @property
    def extraction(self) -> Extraction:
        """The answer found in the text."""
        found: Extraction | None = vars(self).get("_extraction")
        if found is None:
            found = vars(self)["_extraction"] = extract(self.text)
        return found

    @property
    def score(self) -> Score:
        """What the answer is worth, by the task's grader; by comparison with `answer` for rows of other environments.

        Raises `InputError` if `info` claims to be a Reasoning Gym row's and is not.
        """
        found: Score | None = vars(self).get("_score")
        if found is None:
            match = "rg_task" not in self.info
            found = score_match(self.extraction, self.answer) if match else score_extraction(self.extraction, self.info)
            vars(self)["_score"] = found
        return found

    def with_score(self, score: Score) -> "Rollout":
        """The same rollout with a score that is known already."""
        vars(self)["_score"] = score
        return self
