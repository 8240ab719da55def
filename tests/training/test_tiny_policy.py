"""The tiny policy: the shipped model, the recipe that builds it, and the questions that it has seen."""

import itertools
import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tiny_build as recipe
import torch
from tiny_measure import measure, render_prompt
from tiny_questions import questions, take
from tiny_solutions import blurted_guess, worked_solution
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.tiny import MAX_NEW_TOKENS, POLICY_DIR, TASKS

TOOLS = Path(__file__).parents[2] / "tools"

tasks = pytest.mark.parametrize("task", list(TASKS))


@cache
def training_questions(task):
    return take(task, "train", seed=3, count=1000)


def test_importing_the_package_loads_neither_torch_nor_reasoning_gym():
    """Commands can refer to the policy's folder without a heavy import."""
    code = "import sys, rg_env.tiny; assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shipped_policy_is_small(model):
    """The policy is part of the package, so it has fewer than a million parameters and at most 2 MB."""
    assert model.num_parameters() < 1_000_000
    assert (POLICY_DIR / "model.safetensors").stat().st_size <= 2_000_000


def test_generation_config_samples_from_the_whole_distribution(model, tokenizer):
    """A server with the policy's own defaults samples as GRPO assumes."""
    config = model.generation_config
    settings = (config.do_sample, config.temperature or 1.0, config.top_k, config.top_p or 1.0)  # None means 1.0
    assert settings == (True, 1.0, 0, 1.0)
    assert config.eos_token_id == tokenizer.eos_token_id
    assert config.pad_token_id == tokenizer.pad_token_id


@tasks
def test_tokenizer_round_trips_prompts_and_completions(tokenizer, task):
    """The tokens of a prompt are also a prefix of the whole conversation's tokens."""
    for entry in take(task, "eval", seed=5, count=50):
        prompt, solution = render_prompt(tokenizer, entry["question"]), worked_solution(task, entry)
        ids = tokenizer(prompt + solution)["input_ids"]
        assert tokenizer.decode(ids) == prompt + solution
        assert ids[: len(tokenizer(prompt)["input_ids"])] == tokenizer(prompt)["input_ids"]


@tasks
def test_worked_solutions_end_in_the_gold_answer(task):
    """Solutions are computed from the question alone."""
    for entry in training_questions(task):
        blind = {**entry, "answer": None}
        *lines, last = worked_solution(task, blind).splitlines()
        assert last == f"<answer>{entry['answer']}</answer>"
        assert lines
        assert all("=" in line for line in lines)


@tasks
def test_worked_solutions_fit_the_rollout(tokenizer, task):
    """Solutions and their end token leave at least five tokens of the limit unused."""
    texts = [worked_solution(task, entry) for entry in training_questions(task)]
    assert max(len(ids) + 1 for ids in tokenizer(texts)["input_ids"]) <= MAX_NEW_TOKENS - 5


@tasks
def test_blurts_are_well_formed_and_mostly_wrong(task):
    """Guesses are rarely right, so showing the work pays off."""
    rng = random.Random(0)
    entries = training_questions(task)
    right = sum(blurted_guess(task, entry, rng) == f"<answer>{entry['answer']}</answer>" for entry in entries)
    assert 0.03 < right / len(entries) < 0.25


@pytest.mark.slow
@tasks
def test_the_two_splits_share_no_question(task):
    """The build uses one split, and its evaluation the other."""
    train, held_out = (
        {e["question"] for e in itertools.islice(questions(task, split, seed=0), 2000)} for split in ("train", "eval")
    )
    assert train
    assert held_out
    assert not train & held_out


def test_batches_lose_no_example_and_labels_cover_completions_only():
    """Labels are the completion's tokens at their positions; prompts and padding are ignored."""
    ids, labels = recipe.collate([([5, 6], [7, 2]), ([5], [8, 9, 2])], pad=0)
    assert ids.tolist() == [[5, 6, 7, 2], [5, 8, 9, 2]]
    assert labels.tolist() == [[-100, -100, 7, 2], [-100, 8, 9, 2]]
    examples = [([i], [2] * (i % 7 + 1)) for i in range(64)]
    seen = itertools.chain.from_iterable(itertools.islice(recipe.batches(examples, 4, random.Random(0)), 16))
    assert sorted(seen) == sorted(examples)


@pytest.mark.slow
@pytest.mark.full_matrix
def test_quick_build_works_offline_and_is_reproducible(tmp_path):
    """The same seed gives the same bytes, and the build leaves no temporary folder."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    for name in ("one", "two"):
        command = [sys.executable, str(TOOLS / "tiny_build.py"), "--quick", "--out", str(tmp_path / name)]
        subprocess.run(command, check=True, timeout=300, capture_output=True, env=environment)
    made = tmp_path / "one"
    assert AutoModelForCausalLM.from_pretrained(made).num_parameters() < 1_000_000
    assert AutoTokenizer.from_pretrained(made)("7").input_ids
    assert json.loads((made / "config.json").read_text())["model_type"] == "llama"
    for file in ("model.safetensors", "tokenizer.json"):
        assert (made / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert not list(tmp_path.glob(".*"))  # no partial build is left


@pytest.mark.slow
@tasks
def test_the_shipped_policy_mostly_blurts_but_can_work(model, tokenizer, task):
    """GRPO needs a starting point that is well-formed, often wrong, and nearly always right when it shows its work."""
    torch.manual_seed(0)
    sampled = measure(model, tokenizer, take(task, "eval", seed=42, count=200), greedy=False)
    assert 0.15 < sampled.accuracy < 0.45
    assert sampled.well_formed > 0.9
    assert sampled.accuracy_when_worked > 0.8
