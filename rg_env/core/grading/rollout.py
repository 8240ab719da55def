"""Rollouts: one completion for one row, the input of rewards. Its answer is extracted and scored once, on first use."""

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
    """The prompt: chat messages, or text."""
    text: str
    """The completion's text."""
    answer: str
    """The gold answer; empty if the row has none."""
    info: Mapping[str, Any]
    """The row's `info`, which has the data for grading."""
    completion_tokens: int | None = None
    """Number of completion tokens reported by the server; None if it did not report any."""
    truncated: bool | None = None
    """Whether the token limit ended the completion; None if unknown."""
    token_ids: Sequence[int] = ()
    """Sampled tokens, including the end token; empty if unknown."""
    logprobs: Sequence[float] = ()
    """Log-probabilities (natural) of `token_ids` in the distribution they were sampled from; empty if unknown."""
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row, with all of the user's columns; empty if unknown."""

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
        """Build a rollout from `completion` (text or messages), scored immediately, or with a given `score`.

        Raises `InputError` if `info` is not the info of a row.
        """
        rollout = cls(prompt, completion_text(completion), answer, info, completion_tokens, truncated)
        return rollout.with_score(score or rollout.score)

    @property
    def task(self) -> str:
        """The Reasoning Gym task; `UNNAMED_TASK` for rows of other environments."""
        return str(self.info.get("rg_task", UNNAMED_TASK))

    # Not a `cached_property`: up to Python 3.11, its lock is shared by all rollouts and would serialize grading.
    @property
    def extraction(self) -> Extraction:
        """The answer extracted from the text."""
        found: Extraction | None = vars(self).get("_extraction")
        if found is None:
            found = vars(self)["_extraction"] = extract(self.text)
        return found

    @property
    def score(self) -> Score:
        """The score by the task's grader, or by comparison with `answer` for rows of other environments.

        Raises `InputError` if `info` claims to be from a Reasoning Gym row but is invalid.
        """
        found: Score | None = vars(self).get("_score")
        if found is None:
            match = "rg_task" not in self.info
            found = score_match(self.extraction, self.answer) if match else score_extraction(self.extraction, self.info)
            vars(self)["_score"] = found
        return found

    def with_score(self, score: Score) -> "Rollout":
        """A copy of the rollout with a known score."""
        vars(self)["_score"] = score
        return self
