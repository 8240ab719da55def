"""What a trainer's rollouts come from: an `Engine`; here the model itself (`Embedded`), in `vllm_engine` a server."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import Completion, Sampling


class Engine:
    """Samples completions with the newest weights it was given. Methods without a purpose for an engine do nothing."""

    name: str
    max_context: int
    """Most tokens of prompt and completion together."""
    end_ids: frozenset[int]
    """Tokens that end a completion."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt (token ids), in order. On the main process only."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Make running generation end soon."""

    def resume(self) -> None:
        """Generate again after `cancel`."""

    def sync(self) -> None:
        """Give it the model's weights. A collective operation."""

    def check_parity(self, difference: float) -> None:
        """Raise `TrainingError` if log-probabilities of rollouts of the current weights differ by this on average, and
        that is more than rounding explains. On the main process only."""

    def random_state(self) -> torch.Tensor | None:
        """State of the random numbers that it samples with; None if another process has them."""
        return None

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Continue from what `random_state` returned."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within: sampling uses none of the random numbers of training."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """What to log about the last `sync`."""
        return {}

    def close(self) -> None:
        """Release what it holds."""


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
            self.engine.generator.manual_seed(self.engine.seed)  # the same for each evaluation
        try:
            yield
        finally:
            self.set_random_state(before)
