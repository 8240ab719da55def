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
from rg_env.core.text import reason_of
from rg_env.errors import InputError
from rg_env.inference.chat_templates import (
    generation_options,
    is_continued,
    rejects_system_role,
    render,
    unused_variables,
)

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
    stop: tuple[str, ...] = ()
    """Texts that end a completion. The completion includes the text."""

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


_THINK = "<think>"


class PromptEncoder:
    """Encodes prompts with a model's tokenizer and chat template, and caches the results.

    Chat messages are rendered with the chat template, and text is encoded unchanged. A final assistant message is
    continued. If the template does not support system messages, their text is prepended to the first user turn.

    Args:
        template_kwargs: variables of the chat template.

    Raises:
        InputError: the chat template does not use a variable in `template_kwargs`.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        if unused := unused_variables(tokenizer, self.template_kwargs):
            name = getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__
            raise InputError(
                f"chat_template_kwargs: the chat template of {name} does not use {', '.join(unused)}: remove it, or "
                "use a variable of the template"
            )
        self._opens_thinking = _THINK in str(getattr(tokenizer, "chat_template", ""))
        self._known: dict[str, list[int]] = {}
        self._prefixes: dict[str, str] = {}
        self._folds: bool | None = None

    def __call__(self, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode a prompt for generation, or return its cached encoding.

        Raises:
            InputError: the tokenizer has no chat template, the template fails on a single user message, or it cannot
                continue a final assistant message.
        """
        return self.all([prompt])[0]

    def all(self, prompts: Sequence[str | Sequence[Mapping[str, Any]]]) -> list[list[int]]:
        """Encode many prompts together, which is faster than one at a time. Raises the same errors as a single call."""
        keys = [prompt if isinstance(prompt, str) else json.dumps(prompt, default=str) for prompt in prompts]
        fresh = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._known}
        texts = {key: prompt for key, prompt in fresh.items() if isinstance(prompt, str)}
        chats = {key: self._messages(prompt) for key, prompt in fresh.items() if not isinstance(prompt, str)}
        if texts:
            self._remember(texts, self.tokenizer(list(texts.values()))["input_ids"])
        for continues in (False, True):
            some = {key: chat for key, chat in chats.items() if is_continued(chat) is continues}
            if some:
                self._remember(some, self._render(list(some.values()), continues, return_dict=False))
        return [self._known[key] for key in keys]

    def _remember(self, keys: Iterable[str], encodings: Iterable[Any]) -> None:
        self._known.update((key, [int(each) for each in ids]) for key, ids in zip(keys, encodings, strict=True))

    def _render(self, chats: list[Any], continues: bool, **options: Any) -> Any:
        how = generation_options(continues)
        try:
            return render(self.tokenizer, chats, **how, **self.template_kwargs, **options)
        except ValueError as error:
            if isinstance(error, InputError) or not continues:
                raise
            reason = f"the chat template cannot continue a final assistant message: {reason_of(error)}"
            raise InputError(reason) from error

    def _messages(self, prompt: Sequence[Mapping[str, Any]]) -> list[Any]:
        if self._folds is None:
            self._folds = rejects_system_role(self.tokenizer)
        return fold_system(prompt) if self._folds else list(prompt)

    def chat(self, prompt: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of a request with which vLLM renders chat messages as this encoder does."""
        messages = self._messages(prompt)
        kwargs = {"chat_template_kwargs": self.template_kwargs} if self.template_kwargs else {}
        return {"messages": messages, **generation_options(is_continued(messages)), **kwargs}

    def prefix(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """Return the start of the model's turn that is already in the prompt: a final assistant message, or the text
        from a `<think>` that the chat template writes."""
        if isinstance(prompt, str):
            return _THINK if prompt.rstrip().endswith(_THINK) else ""
        last = prompt[-1]
        if is_continued(prompt):
            return str(last["content"])
        if not self._opens_thinking:
            return ""
        key = json.dumps(prompt, default=str)
        if key not in self._prefixes:
            # Only the text after the last message counts, because questions and instructions can mention tags.
            (text,), message = self._render([self._messages(prompt)], False, tokenize=False), last["content"].strip()
            if message and message in text:
                end = text.rpartition(message)[2]
            else:  # the template changes the message
                end = _THINK if text.rstrip().endswith(_THINK) else ""
            self._prefixes[key] = end[end.find(_THINK) :] if _THINK in end else ""
        return self._prefixes[key]

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


def kv_width(config: Any) -> int:
    """Return the number of a model's key-value heads times the size of a head. If its layers differ, as in Gemma 4, the
    result is the largest of all layers. It is 0 without attention, as for Mamba."""

    def width(layer: Any) -> int:
        heads = getattr(layer, "num_attention_heads", 0)
        head = getattr(layer, "head_dim", None) or layer.hidden_size // max(heads, 1)
        return int((getattr(layer, "num_key_value_heads", None) or heads) * head)

    config = config.get_text_config(decoder=True)
    return max(map(width, getattr(config, "per_layer_config", None) or [config]))
