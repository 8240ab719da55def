"""What models are asked for external benchmarks: lm-eval's requests, the answers so far, the file that keeps them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rg_env.evaluation.counts import usage_of
from rg_env.evaluation.jobs import Jobs, Work
from rg_env.evaluation.requests import Reply
from rg_env.evaluation.results import Usage
from rg_env.evaluation.rollouts import Checks, RolloutFile, are_tokens, is_answer, is_text

FOLDER = "external"
ANSWERS = "answers.jsonl"
_NEEDED: Checks = {
    "model": is_text,
    "benchmark": is_text,
    "key": is_text,
    "text": is_text,
    "error": lambda value: value is None or is_text(value),
    "truncated": is_answer,
    "prompt_tokens": are_tokens,
    "completion_tokens": are_tokens,
}


@dataclass
class Benchmark(Work):
    """One model on one benchmark."""

    name: str
    prompt: int
    """Number of the model's system prompt among those of all models."""
    requests: dict[str, dict[str, Any]]
    """By key: `messages` and settings of sampling."""
    price: tuple[float, float] | None = None
    answers: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    """By key, as they stand in the file."""
    file: RolloutFile | None = field(default=None, init=False)
    """Where answers are written to."""

    @property
    def label(self) -> str:
        return self.name

    @property
    def asked(self) -> int:
        return len(self.requests)

    @property
    def made(self) -> int:
        return len(self.answers)

    @property
    def left(self) -> int:
        return sum(self._is_open(key) for key in self.requests)

    @property
    def failed(self) -> int:
        return sum(answer["error"] is not None for answer in self.answers.values())

    def put(self, record: dict[str, Any]) -> None:
        """An answer from the file: a later one replaces an earlier one; one to another question is left out."""
        if record["key"] in self.requests:
            self.answers[record["key"]] = record

    def jobs(self) -> Jobs:
        """What is still to be asked, calls that failed once more."""
        yield from [_Job(self, key) for key in self.requests if self._is_open(key)]

    def usage(self) -> Usage:
        """Tokens, and what they cost."""
        return usage_of(self._sum("prompt_tokens"), self._sum("completion_tokens"), self.price)

    def _sum(self, tokens: str) -> int | None:
        known = [each for answer in self.answers.values() if (each := answer.get(tokens)) is not None]
        return sum(known) if known else None

    def _is_open(self, key: str) -> bool:
        return key not in self.answers or self.answers[key]["error"] is not None


@dataclass
class _Job:
    work: Benchmark
    key: str

    def request(self) -> dict[str, Any]:
        return self.work.requests[self.key]

    async def take(self, reply: Reply | None, error: str | None, seconds: float) -> None:
        record = {
            "model": self.work.model,
            "benchmark": self.work.name,
            "key": self.key,
            "text": reply.text if reply else "",
            "reasoning": reply.reasoning if reply else None,
            "prompt_tokens": reply.prompt_tokens if reply else None,
            "completion_tokens": reply.completion_tokens if reply else None,
            "truncated": reply.truncated if reply else None,
            "error": error,
            "seconds": seconds,
        }
        assert self.work.file
        self.work.file.append(record)
        self.work.answers[self.key] = record


@contextlib.contextmanager
def answer_file(folder: Path, benchmarks: list[Benchmark]) -> Iterator[None]:
    """Give the benchmarks the answers that `folder` has, and write theirs there."""
    (folder / FOLDER).mkdir(exist_ok=True)
    by_name = {(each.model, each.name): each for each in benchmarks}
    with RolloutFile(folder / FOLDER / ANSWERS, _NEEDED) as file:
        for record in file.records():
            if each := by_name.get((record["model"], record["benchmark"])):
                each.put(record)
        for each in benchmarks:
            each.file = file
        yield
