"""What a model has to answer: some work of so many calls, and one call of it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from rg_env.evaluation.requests import Reply


class Job(Protocol):
    """One call."""

    @property
    def work(self) -> "Work": ...

    def request(self) -> dict[str, Any]:
        """Its `messages`, and the settings of sampling."""
        ...

    async def take(self, reply: Reply | None, error: str | None, seconds: float) -> None:
        """Keep the answer, or the error of a call that failed for good."""
        ...


@dataclass
class Work(ABC):
    """One model on one task or benchmark."""

    model: str
    began: float | None = field(default=None, init=False)
    """On the clock of `time.monotonic`."""
    at_start: int = field(default=0, init=False)
    """Answers that there were when it began."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it asks, in a word."""

    @property
    @abstractmethod
    def asked(self) -> int:
        """Answers that are to be made, or were."""

    @property
    @abstractmethod
    def made(self) -> int:
        """Answers that there are, failed calls among them."""

    @property
    @abstractmethod
    def left(self) -> int:
        """Calls that are to be made, those that failed in an earlier run among them."""

    @property
    @abstractmethod
    def failed(self) -> int:
        """Calls without an answer, after all tries."""

    @property
    def seconds_left(self) -> float | None:
        """By its speed so far; None as long as nothing can be said."""
        made = self.made - self.at_start
        if self.began is None or made <= 0:
            return None
        return (time.monotonic() - self.began) / made * (self.asked - self.made)

    def begin(self) -> None:
        """The first call is about to be made."""
        if self.began is None:
            self.began, self.at_start = time.monotonic(), self.made


Jobs = Iterator[Job]
