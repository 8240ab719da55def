"""Engines, which sample the trainer's rollouts: the model in training itself (`Embedded`), or a server
(`vllm_engine`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import Completion, Sampling


class Engine(ABC):
    """Samples completions with the weights of the last `sync`. Optional methods do nothing by default."""

    name: str
    max_context: int
    """Maximum number of tokens of prompt and completion together."""
    end_ids: frozenset[int]
    """Ids of the tokens that end a completion."""

    @abstractmethod
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt (token ids), in order. On the main process only."""

    def cancel(self) -> None:
        """Ask running calls of `generate` to return soon."""

    def resume(self) -> None:
        """Allow generation again after `cancel`."""

    def sync(self) -> None:
        """Update the engine's weights to the model's. A collective operation."""

    def check_parity(self, difference: float) -> None:
        """Raise `TrainingError` if `difference`, the mean absolute difference between the engine's and the trainer's
        log-probabilities of rollouts from the current weights, exceeds what rounding explains. On the main process
        only."""

    def random_state(self) -> torch.Tensor | None:
        """State of the random number generator used for sampling; None if it is in another process."""
        return None

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Restore a state that `random_state` returned."""

    def aside(self) -> AbstractContextManager[Any]:
        """Context in which sampling does not advance the random numbers of training."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last `sync`."""
        return {}

    def close(self) -> None:
        """Release the engine's resources."""


class Embedded(Engine):
    """The model that is being trained, in this process."""

    name = "embedded"

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int, max_batch_size: int = 512
    ):
        self.engine = EmbeddedEngine(model, tokenizer, seed=seed, max_batch_size=max_batch_size)
        self.max_context, self.end_ids = self.engine.max_context, frozenset(self.engine.end_ids)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return self.engine.generate(prompts, sampling)

    def cancel(self) -> None:
        self.engine.cancel()

    def resume(self) -> None:
        self.engine.resume()

    def random_state(self) -> torch.Tensor | None:
        generator = self.engine.generator
        return None if generator is None else generator.get_state()

    def set_random_state(self, state: torch.Tensor | None) -> None:
        if state is not None and self.engine.generator is not None:
            self.engine.generator.set_state(state)

    @contextmanager
    def aside(self) -> Iterator[None]:
        before = self.random_state()
        if self.engine.generator is not None and self.engine.seed is not None:
            self.engine.generator.manual_seed(self.engine.seed)  # every evaluation uses the same random numbers
        try:
            yield
        finally:
            self.set_random_state(before)
