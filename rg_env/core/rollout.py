"""One completion for one row, extracted and scored: what rewards look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rg_env.core.extraction import Extraction, completion_text, extract
from rg_env.core.scoring import Score, score_extraction


@dataclass(frozen=True)
class Rollout:
    """One completion for one row, extracted and scored."""

    prompt: Any
    """Chat messages, or text."""
    text: str
    """The completion's text."""
    answer: str
    """The gold answer; empty where the library stores none."""
    extraction: Extraction
    score: Score
    task: str
    info: Mapping[str, Any]
    completion_tokens: int | None = None
    """As the server reported it; None if it did not."""
    truncated: bool | None = None
    """Whether the completion ended because of the token limit; None if not known."""

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
        """Extract and score `completion`, once; not again where its `score` is given.

        Raises `InputError` if `info` is not of one of our rows.
        """
        text = completion_text(completion)
        extraction = extract(text)
        score = score or score_extraction(extraction, info)
        return cls(prompt, text, answer, extraction, score, score.task, info, completion_tokens, truncated)
