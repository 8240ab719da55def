"""The interface that all engines (embedded, vLLM) implement: token ids in, token ids out. `PromptEncoder` converts
prompts to token ids, and completions to text. This module does not import torch.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from rg_env.core.environment import Environment
from rg_env.core.prompts import fold_system
from rg_env.inference.chat_templates import rejects_system_role

_UNLIMITED = 32_768


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. With the defaults, tokens are sampled from the model's own distribution."""

    temperature: float = 1.0
    """Temperature. Below 1e-5, sampling is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens to sample from. 0 or less means no limit."""
    min_p: float = 0.0
    """Tokens with less than this fraction of the most likely token's probability are excluded."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    """Maximum number of new tokens. None means no limit other than the context length."""

    @property
    def is_plain(self) -> bool:
        """Whether tokens are sampled from the model's own distribution, apart from temperature."""
        return (self.top_p, max(self.top_k, 0), self.min_p) == (1.0, 0, 0.0) and not self.penalized

    @property
    def penalized(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Completion:
    """The sampled tokens of one completion. Training and evaluation both use this representation."""

    token_ids: list[int]
    """Token ids, including the end-of-sequence token if it was sampled."""
    logprobs: list[float]
    """Log-probabilities (natural log) of `token_ids` in the distribution that they were sampled from."""
    finish_reason: Literal["stop", "length"]


class Engine(ABC):
    """Base class of engines. An engine maps prompts to completions, both as token ids. Methods that only a trainer
    needs do nothing by default."""

    name: str
    max_context: int
    """Maximum total number of tokens in a prompt and its completion."""
    max_batch_size: int = 2048
    """Maximum number of prompts that an evaluation passes to one `generate` call. Progress is reported between calls.
    """
    end_ids: frozenset[int]
    """Ids of the tokens that end a completion."""

    @abstractmethod
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Generate one completion per prompt (token ids), in order, with the weights from the last `sync`. Call this on
        the main process only."""

    def cancel(self) -> None:
        """Ask running calls to `generate` to end soon."""

    def resume(self) -> None:
        """Allow generation again after `cancel`."""

    def sync(self) -> None:
        """Update the engine's weights to match the trainer's. This is a collective operation."""

    def check_parity(self, difference: float) -> None:
        """Raise `TrainingError` if the engine's log-probabilities differ from the trainer's by more than rounding can
        explain. Call this on the main process only.

        Args:
            difference: mean absolute difference between the log-probabilities, for rollouts from the current weights.
        """

    def random_state(self) -> Any:
        """Return the sampler's random state as a tensor, or None if the sampler has no seed or is in another
        process."""

    def set_random_state(self, state: Any) -> None:
        """Restore a state returned by `random_state`."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within this context, sample without advancing training's random state."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Return metrics from the last `sync`."""
        return {}

    def close(self) -> None:
        """Release the engine's resources."""


class PromptEncoder:
    """Encodes prompts with a model's tokenizer and chat template, and caches the results.

    Chat messages are rendered with the chat template, and text is encoded unchanged. If the template does not support
    system messages, their text is prepended to the first user turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._folds: bool | None = None

    def __call__(self, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode a prompt for generation, or return its cached encoding.

        Raises:
            InputError: the tokenizer has no chat template, or the template fails on a single user message.
        """
        return self.all([prompt])[0]

    def all(self, prompts: Sequence[str | Sequence[Mapping[str, Any]]]) -> list[list[int]]:
        """Encode many prompts together, which is faster than one at a time. Raises the same errors as a single call."""
        keys = [prompt if isinstance(prompt, str) else json.dumps(prompt, default=str) for prompt in prompts]
        fresh = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._known}
        texts = {key: prompt for key, prompt in fresh.items() if isinstance(prompt, str)}
        chats = {key: prompt for key, prompt in fresh.items() if not isinstance(prompt, str)}
        if texts:
            self._remember(texts, self.tokenizer(list(texts.values()))["input_ids"])
        if chats:
            if self._folds is None:
                self._folds = rejects_system_role(self.tokenizer)
            messages = [fold_system(prompt) if self._folds else list(prompt) for prompt in chats.values()]
            render = self.tokenizer.apply_chat_template
            self._remember(chats, render(messages, add_generation_prompt=True, return_dict=False))
        return [self._known[key] for key in keys]

    def _remember(self, keys: Iterable[str], encodings: Iterable[Any]) -> None:
        self._known.update((key, [int(each) for each in ids]) for key, ids in zip(keys, encodings, strict=True))

    def decode(self, completions: Sequence[Sequence[int]], ends: frozenset[int]) -> list[str]:
        """Decode completions (token ids) without the end-of-sequence token and other special tokens."""
        bare = [list(ids[:-1] if ids and ids[-1] in ends else ids) for ids in completions]
        texts: list[str] = self.tokenizer.batch_decode(
            bare, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts


def prompt_lengths(env: Environment, encoder: PromptEncoder) -> dict[str, list[int]]:
    """Return the number of tokens in each prompt, by split ("training", "evaluation"). Omit empty splits."""
    splits = (("training", env.train_rows), ("evaluation", env.eval_rows))
    return {split: list(map(len, encoder.all([row["prompt"] for row in rows]))) for split, rows in splits if rows}


def context_length(config: Any, tokenizer: Any) -> int:
    """Return a model's context length in tokens. Without one in the model's configuration, as for models with relative
    positions (Bloom, MPT), it is the tokenizer's limit or, if that is unlimited, `_UNLIMITED`."""
    length = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return int(length or min(tokenizer.model_max_length, _UNLIMITED))
