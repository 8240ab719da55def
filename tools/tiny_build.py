"""Build the tiny policy from scratch: a tokenizer, and a model trained on worked solutions, then on a mixture with
guesses.

    python tools/tiny_build.py --out DIR            # takes minutes on two cores
    python tools/tiny_build.py --out DIR --quick    # smoke test in seconds; the policy learns nothing

1. Draw questions from the training split for every task, and write a worked solution for each.
2. Train a byte-level BPE tokenizer on that text.
3. Train a Llama-shaped model with fewer than a million parameters on the worked solutions.
4. Continue with a mixture in which most completions are guesses without work. The policy then knows both kinds of
   completion but mostly guesses, so GRPO has to teach it when to work, not how.
5. Measure the policy on questions from the evaluation split, and save weights, tokenizer, chat template and generation
   config.

Nothing is downloaded. The same seed on the same machine yields the same weights. The output folder must not exist; it
is moved into place when it is complete.
"""

import argparse
import itertools
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tiny_measure import measure, render_prompt
from tiny_questions import problem_of, take
from tiny_solutions import blurted_guess, worked_solution
from tiny_tokenizer import END, train_tokenizer
from torch.nn import functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from rg_env.core.data.splits import split_of
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.tiny import TASKS

IGNORED = -100
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.08,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": None,
}
"""Dimensions and other options of the model, as in `LlamaConfig`."""


@dataclass(frozen=True)
class Recipe:
    """Settings that, together with the seed, determine the policy."""

    vocab_size: int = 768
    questions: dict[str, int] = field(
        default_factory=lambda: {"leg_counting": 24_000, "chain_sum": 36_000, "simple_equations": 18_000}
    )
    """Training questions per task; the numbers also determine each task's average share of a batch."""
    batch_size: int = 64
    learning_rate: float = 3e-3
    learn_steps: int = 1_300
    """Number of steps on worked solutions only."""
    mix_steps: int = 400
    """Number of steps on the mixture of worked solutions and guesses; the learning rate continues to decay."""
    worked_share: float = 0.28
    """Share of worked solutions in the mixture, and approximately in the policy's answers."""
    measured: int = 512
    """Evaluation questions per task."""
    threads: int = 2
    """Number of torch threads, fixed because it determines the order of summation and thus the exact weights."""


QUICK = Recipe(questions=dict.fromkeys(TASKS, 300), batch_size=8, learn_steps=6, mix_steps=4, measured=8, threads=1)

Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of its completion, including END."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to create; must not exist")
    parser.add_argument("--seed", type=int, default=0, help="seed for questions, weights and batches (default 0)")
    parser.add_argument("--quick", action="store_true", help="run only a few steps, as a smoke test")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} already exists: choose a new folder for --out")
    build(args.out, seed=args.seed, recipe=QUICK if args.quick else Recipe())


def build(out: Path, *, seed: int, recipe: Recipe) -> None:
    """Build the policy and save it in the new folder `out`."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)

    entries = training_entries(recipe, seed)
    say(f"{sum(map(len, entries.values()))} questions from the training split: {', '.join(entries)}")

    worked = {task: [worked_solution(task, entry) for entry in entries[task]] for task in entries}
    tokenizer = train_tokenizer(tokenizer_texts(entries, worked), recipe.vocab_size)
    model = new_model(tokenizer)
    say(f"{len(tokenizer)} tokens, {model.num_parameters():,} parameters")

    examples = tokenize(tokenizer, entries, worked)
    longest = max(len(completion) for _, completion in examples)
    average = sum(len(prompt) for prompt, _ in examples) / len(examples)
    say(f"prompts of {average:.0f} tokens on average, completions of at most {longest}")

    mixture = {
        task: [
            text if rng.random() < recipe.worked_share else blurted_guess(task, entry, rng)
            for entry, text in zip(entries[task], worked[task], strict=True)
        ]
        for task in entries
    }
    learn = itertools.islice(batches(examples, recipe.batch_size, rng), recipe.learn_steps)
    mix = itertools.islice(batches(tokenize(tokenizer, entries, mixture), recipe.batch_size, rng), recipe.mix_steps)
    say(f"{recipe.learn_steps} steps on worked solutions, {recipe.mix_steps} with {recipe.worked_share:.0%} of them")
    train(model, itertools.chain(learn, mix), recipe.learn_steps + recipe.mix_steps, recipe.learning_rate, say)

    # Measure the policy with the weights as they are shipped, rounded to bfloat16.
    model.to(torch.bfloat16).to(torch.float32)
    for task in TASKS:
        held_out = take(task, "eval", seed=1_000_000 + seed, count=recipe.measured)
        for greedy in (False, True):
            result = measure(model, tokenizer, held_out, greedy=greedy)
            say(f"{task:16} {'greedy ' if greedy else 'sampled'}: {result}")

    save(model, tokenizer, out)
    say(f"saved to {out}")


def training_entries(recipe: Recipe, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return Reasoning Gym entries by task, without problems from the evaluation split."""
    entries = {task: take(task, "train", seed=seed, count=count) for task, count in recipe.questions.items()}
    assert all(split_of(problem_of(task, entry)) == "train" for task in entries for entry in entries[task])
    return entries


def tokenizer_texts(entries: dict[str, list[dict[str, Any]]], worked: dict[str, list[str]]) -> Iterator[str]:
    """Yield the tokenizer's training texts. The parts of a conversation are separate texts, because special tokens come
    between them."""
    for task in entries:
        for entry, solution in zip(entries[task][:4000], worked[task][:4000], strict=True):
            yield f"user\n{entry['question']}"
            yield solution
            yield f"system\n{SYSTEM_PROMPT}"
            yield "assistant\n"


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return the model with random weights.

    The architecture is Llama's, which loads the same way everywhere. With Qwen2's architecture, transformers 5 would
    replace our tokenizer with its own.
    """
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **ARCHITECTURE, **ends))


def tokenize(
    tokenizer: PreTrainedTokenizerBase, entries: dict[str, list[dict[str, Any]]], completions: dict[str, list[str]]
) -> list[Example]:
    """Return the prompts and completions of all tasks as token ids."""
    examples: list[Example] = []
    for task in entries:
        prompts = tokenizer([render_prompt(tokenizer, entry["question"]) for entry in entries[task]])["input_ids"]
        answers = tokenizer([text + END for text in completions[task]])["input_ids"]
        examples.extend(zip(prompts, answers, strict=True))
    return examples


def batches(examples: Sequence[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """Yield an infinite stream of random batches, each sorted by length."""
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order) - size + 1, size):
            yield sorted((examples[i] for i in order[start : start + size]), key=lambda e: len(e[0]) + len(e[1]))


def collate(batch: Sequence[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `ids` and `labels`, both (B, T) int64, padded on the right; labels mask prompts and padding."""
    length = max(len(prompt) + len(completion) for prompt, completion in batch)
    ids = torch.full((len(batch), length), pad)
    labels = torch.full((len(batch), length), IGNORED)
    for row, (prompt, completion) in enumerate(batch):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return ids, labels


def train(
    model: LlamaForCausalLM, stream: Iterable[list[Example]], steps: int, peak: float, say: Callable[[str], None]
) -> None:
    """Train on the tokens of completions with AdamW; the learning rate warms up to `peak`, then follows a cosine
    decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    warmup = min(100, steps // 10 + 1)
    model.train()
    for step, batch in enumerate(stream):
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / steps)
        optimizer.param_groups[0]["lr"] = peak * min((step + 1) / warmup, cosine)
        # Splitting the batch into shorter and longer sequences saves padding.
        half = len(batch) // 2
        wanted_tokens = sum(len(completion) for _, completion in batch)
        loss = sum(backward(model, part, wanted_tokens) for part in (batch[:half], batch[half:]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            say(f"step {step:5d}/{steps}: loss {loss:.4f}")


def backward(model: LlamaForCausalLM, examples: Sequence[Example], wanted_tokens: int) -> float:
    """Accumulate the gradient of these examples' part of the mean loss over `wanted_tokens` tokens, and return
    that part."""
    ids, labels = collate(examples, model.config.pad_token_id)
    # Causal attention never attends to padding on the right, so no attention mask is needed. Only the positions that
    # predict a completion go through the output layer.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = labels[:, 1:] != IGNORED
    loss = F.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted], reduction="sum") / wanted_tokens
    loss.backward()
    return loss.item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write to a temporary folder next to `out`, then rename it, so that `out` is never incomplete."""
    aside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(aside)
    # Weights are saved in bfloat16 to save space, but training in bfloat16 would lose updates of 1e-4, so dtype "auto"
    # must mean float32.
    config = aside / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float32"}, indent=2) + "\n")
    tokenizer.save_pretrained(aside)
    aside.rename(out)


if __name__ == "__main__":
    main()
