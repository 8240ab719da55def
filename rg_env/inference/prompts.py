"""Encode prompts as token ids, for training and evaluation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rg_env.core.prompts import fold_system, rejects_system_role, require_chat_template


class PromptEncoder:
    """Encodes prompts with a model's tokenizer and chat template, and caches the results.

    Chat messages are rendered with the chat template; text is encoded unchanged. If the template does not support
    system messages, their text is prepended to the user's turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._folds: bool | None = None

    def __call__(self, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode a prompt, ready for generation.

        Raises:
            InputError: the tokenizer has no chat template, or the template fails on a plain question.
        """
        key = prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)
        if key not in self._known:
            self._known[key] = self.encode(prompt)
        return self._known[key]

    def encode(self, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode a prompt without caching."""
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt)["input_ids"]
        else:
            if self._folds is None:
                require_chat_template(self.tokenizer)
                self._folds = rejects_system_role(self.tokenizer)
            messages = fold_system(prompt) if self._folds else list(prompt)
            ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return [int(token) for token in ids]

    def decode(self, completions: Sequence[Sequence[int]], ends: frozenset[int]) -> list[str]:
        """Decode completions (token ids) without the end token and other special tokens."""
        bare = [list(ids[:-1] if ids and ids[-1] in ends else ids) for ids in completions]
        texts: list[str] = self.tokenizer.batch_decode(
            bare, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts
