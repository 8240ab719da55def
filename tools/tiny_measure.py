"""Measure a policy on one task, sampled or greedy: accuracy, format, and share of completions that begin with work."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.tiny import MAX_NEW_TOKENS

_ANSWER = re.compile(r"<answer>(.*?)</answer>")


@dataclass(frozen=True)
class Measurement:
    """Shares of completions, in [0, 1], and the mean length of completions."""

    accuracy: float
    """Share of completions with the right answer."""
    well_formed: float
    """Share of completions with an end token and exactly one answer in tags."""
    worked: float
    """Share of completions that do not begin with `<answer>`."""
    accuracy_when_worked: float
    """Accuracy of completions that do not begin with `<answer>`; 0 if there are no such completions."""
    tokens: float
    """Mean number of tokens per completion, including the end token."""

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.3f}, well-formed {self.well_formed:.3f}, worked {self.worked:.3f} "
            f"(right {self.accuracy_when_worked:.3f}), {self.tokens:.1f} tokens"
        )


def render_prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    """Return the prompt for one question, as every trainer and server in this package renders it."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.inference_mode()
def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, entries: Sequence[dict[str, Any]], *, greedy: bool
) -> Measurement:
    """Measure one completion per entry, greedy or sampled at temperature 1."""
    prompts = [render_prompt(tokenizer, entry["question"]) for entry in entries]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    was_training = model.training
    model.eval()
    output = model.generate(
        **batch,
        do_sample=not greedy,
        temperature=1.0,
        top_k=None if greedy else 0,
        top_p=1.0,
        max_new_tokens=MAX_NEW_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.train(was_training)
    completions = output[:, batch["input_ids"].shape[1] :]
    ended = (completions == tokenizer.eos_token_id).any(dim=1).tolist()
    lengths = (completions != tokenizer.pad_token_id).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)

    right, formed, worked = [], [], []
    for entry, text, end in zip(entries, texts, ended, strict=True):
        answers = _ANSWER.findall(text)
        right.append(bool(answers) and answers[-1].strip() == entry["answer"])
        formed.append(end and len(answers) == 1)
        worked.append(not text.startswith("<answer>"))
    right_worked = [r for r, w in zip(right, worked, strict=True) if w]
    return Measurement(
        accuracy=_share(right),
        well_formed=_share(formed),
        worked=_share(worked),
        accuracy_when_worked=_share(right_worked),
        tokens=sum(lengths) / len(lengths),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
