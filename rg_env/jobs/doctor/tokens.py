"""What a run's prompts and answers come to in tokens. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rg_env.jobs.doctor.asked_run import AskedRun

_ENGINE_BATCH = 512
"""Sequences that the embedded engine decodes at once at most."""


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of each prompt of a run."""

    training: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    """Of the training tasks."""
    besides: Sequence[int] = ()
    """Of all else that evaluations ask: held-out tasks, and what has a label."""

    @property
    def own(self) -> list[int]:
        """Those that `max_prompt_length` is for."""
        return [*self.training, *self.evaluation]

    @property
    def evaluated(self) -> list[int]:
        return [*self.evaluation, *self.besides]


def evaluated_tokens(run: AskedRun, settings: Mapping[str, Any]) -> int:
    """Of an answer in evaluations, at most."""
    tokens: int = run.evaluated_tokens or settings["max_tokens"]
    return tokens


def sequence_tokens(run: AskedRun, settings: Mapping[str, Any], lengths: PromptLengths | None = None) -> int:
    """Prompt and answer together that an engine must take; without `lengths`, what `rg-env launch` starts a server
    for."""
    new = evaluated_tokens(run, settings)
    allowed: int = settings["max_prompt_length"] + max(settings["max_tokens"], new)
    return max([allowed, *(length + new for length in (lengths.besides if lengths else ()))])


def cached_tokens(run: AskedRun, settings: Mapping[str, Any], lengths: PromptLengths | None) -> tuple[int, int]:
    """Of all sequences that the embedded engine decodes at once: in training, and in an evaluation."""
    if run.engine != "embedded":
        return 0, 0
    rollouts = settings["rollouts_per_step"]
    longest = max(lengths.own) if lengths else settings["max_prompt_length"]
    asked = lengths.evaluated if lengths else []
    answers = min(len(asked) * run.evaluated_answers, _ENGINE_BATCH)
    return (
        min(rollouts, _ENGINE_BATCH) * (longest + settings["max_tokens"]),
        answers * (max(asked, default=0) + evaluated_tokens(run, settings)),
    )
