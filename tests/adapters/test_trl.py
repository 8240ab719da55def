"""The environment for TRL, called as `GRPOTrainer` 1.x calls it; `test_trl_training.py` uses the real trainer."""

import inspect
import os
import pickle
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_code import run_code
from seen_rewards import Seen

from rg_env.adapters.trl import TRLEnvironment, load_environment
from rg_env.core.environment import ReasoningGym
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Scored
from rg_env.errors import InputError, RewardError

SMALL: dict[str, Any] = {"num_train_examples": 8, "num_eval_examples": 6}
MIXTURE = ["leg_counting", {"name": "chain_sum", "weight": 2}, {"name": "maze", "weight": 0.5}]
ALL_REWARDS = [
    ("correctness", 1.0),
    ("format", 0.1),
    "think_format",
    "partial",
    ("brevity", 0.0),
    "cosine",
    "repetition_penalty",
    {"name": "length", "weight": 0.3, "when": "correct", "options": {"max_tokens": 64}},
    {"name": "overlong_penalty", "options": {"max_tokens": 100, "margin": 40}},
]


EXAMPLE = Path(__file__).parents[2] / "examples" / "train_trl.py"
SHOTS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}]


class Logs:
    """The additional arguments that `GRPOTrainer` passes to reward functions, and the logs it collects."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.extra: dict[str, list[Any]] = defaultdict(list)

    def arguments(self) -> dict[str, Any]:
        return {
            "trainer_state": SimpleNamespace(global_step=3),
            "log_metric": lambda name, value: self.metrics[name].append(value),
            "log_extra": lambda column, values: self.extra[column].extend(values),
        }

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.metrics.items()}


def _call(env: TRLEnvironment, texts: list[Any], rows: list[Any] | None = None, logs: Logs | None = None) -> list[Any]:
    """Call each function on one batch, with one completion per row, as `GRPOTrainer._calculate_rewards` does."""
    rows = rows or env.train_dataset.to_list()[: len(texts)]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    batch = {
        "prompts": [row["prompt"] for row in rows],
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "completion_ids": [[7] * len(text or "") for text in texts],
    }
    kwargs = columns | (logs or Logs()).arguments()
    return [function(**batch, **kwargs) for function in env.reward_funcs]


def _right(row: Any) -> str:
    return f"<answer>{row['answer']}</answer>"


@pytest.mark.parametrize(
    "arguments",
    [
        {"gym": MIXTURE, "seed": 3, "eval_seed": 1, "grading": "partial"},
        {"prompt_placement": "user", "grading": "upstream", "system_prompt": "Answer.", "few_shot": SHOTS},
    ],
)
def test_rows_match_the_plain_environment(arguments: dict[str, Any]) -> None:
    """Rows of both splits and the manifest equal those of `ReasoningGym`."""
    env = load_environment(**SMALL, **arguments)
    other = ReasoningGym(**SMALL, **arguments)
    assert env.train_dataset is not None
    assert env.eval_dataset is not None
    assert (env.train_dataset.to_list(), env.eval_dataset.to_list()) == (other.train_rows, other.eval_rows)
    assert env.manifest == other.manifest
    again = load_environment(**SMALL, **arguments, manifest=env.manifest)
    assert again.train_dataset.to_list() == env.train_dataset.to_list()


TAGS = ["<answer>", "</answer>", "<think>", "</think>"]
PIECES = st.sampled_from([*TAGS, "GOLD", "GOLD.", "7", " ", "\n", "word word word ", "\\boxed{GOLD}"])
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join) | st.just("<answer>GOLD</answer>")


@cache
def _both(grading: str) -> tuple[TRLEnvironment, ReasoningGym]:
    arguments = {"gym": MIXTURE, "rewards": ALL_REWARDS, "grading": grading}
    return load_environment(**SMALL, **arguments), ReasoningGym(**SMALL, **arguments)


def _means(scored: list[Scored]) -> dict[str, float]:
    """Return the mean of each metric over the rollouts that it applies to."""
    names = {name for each in scored for name in each.metrics}
    values = {name: [each.metrics[name] for each in scored if name in each.metrics] for name in names}
    return {name: sum(of) / len(of) for name, of in values.items()}


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), grading=st.sampled_from(["hardened", "partial"]))
def test_scores_match_the_plain_environment_exactly(texts: list[str], grading: str) -> None:
    """Rewards, weights, metrics and statuses equal those of `ReasoningGym` for the same completions and token counts.

    All functions are synchronous, so TRL calls them one after another.
    """
    env, other = _both(grading)
    rows = other.train_rows[: len(texts)]
    texts = [text.replace("GOLD", row["answer"]) for text, row in zip(texts, rows, strict=True)]
    logs = Logs()
    ours = dict(zip([f.__name__ for f in env.reward_funcs], _call(env, texts, list(rows), logs), strict=True))
    rollouts = [other.rollout(row, text, completion_tokens=len(text)) for row, text in zip(rows, texts, strict=True)]
    theirs = other.score(rollouts)
    assert ours == {name: [each.rewards[name] for each in theirs] for name in ours}
    assert dict(zip(ours, env.reward_weights, strict=True)) == other.reward_weights
    assert not any(inspect.iscoroutinefunction(function.__call__) for function in env.reward_funcs)
    assert logs.means() == _means(theirs)
    assert logs.extra == {"status": [rollout.score.status for rollout in rollouts]}


@pytest.mark.parametrize("form", [str, lambda text: [], lambda text: [{"role": "assistant"}], lambda text: None])
def test_completions_in_other_forms(form: Any) -> None:
    """Completions may be plain text, as TRL passes it for plain prompts; messages without text earn nothing."""
    env = load_environment(**SMALL)
    rows = env.train_dataset.to_list()[:2]
    columns = {name: [row[name] for row in rows] for name in ("answer", "info")}
    completions = [form(_right(row)) for row in rows]
    values = env.reward_funcs[0](prompts=["?", "?"], completions=completions, **columns)
    assert values == ([1.0, 1.0] if form is str else [0.0, 0.0])


def test_reasoning_in_a_separate_field_is_part_of_the_text() -> None:
    """Tokenizers that parse responses move the <think> block from the content to another field, whose name depends on
    the model."""
    env = load_environment(**SMALL, rewards=["think_format", "correctness"])
    row = env.train_dataset[0]
    for key in ("reasoning_content", "thinking"):
        message = {"role": "assistant", "content": _right(row), key: "3 cats have 12"}
        values = [
            function(prompts=["?"], completions=[[message]], answer=[row["answer"]], info=[row["info"]])
            for function in env.reward_funcs
        ]
        assert values == [[1.0], [1.0]]
    assert _call(env, [_right(row)], [row])[0] == [0.0]


def test_an_answer_in_thinking_that_the_template_opens_does_not_count() -> None:
    """The completion has no tag of its own if it ends in the thinking section."""
    env = load_environment(**SMALL, opens_thinking=True)
    row = env.train_dataset[0]
    texts = [f"so {_right(row)}, or", f"so</think>{_right(row)}"]
    assert [_call(env, [text], [row])[0] for text in texts] == [[0.0], [1.0]]


def test_a_batch_is_scored_and_logged_once() -> None:
    """The first function to be called scores the batch, even if trainers call all of them concurrently. The next batch
    is scored again, even if it is equal; a stale score is never used."""
    seen = [Seen("one"), Seen("two"), Seen("three")]
    env = load_environment(**SMALL, rewards=seen)
    logs = Logs()
    for step in (1, 2):
        _call(env, ["a", "b"], logs=logs)
        assert len(logs.metrics["accuracy"]) == 2 * step
    assert len({id(rollout) for each in seen for rollout in each.rollouts}) == 4
    rows = env.train_dataset.to_list()
    columns = {name: [row[name] for row in rows] for name in ("answer", "info")}
    batch = {"prompts": ["?"] * 8, "completions": list(map(_right, rows)), "completion_ids": [[1] * 8] * 8}
    with ThreadPoolExecutor(len(env.reward_funcs)) as pool:
        futures = [pool.submit(function, **batch, **columns) for function in env.reward_funcs]
        assert [future.result() for future in futures] == [[1.0] * 8] * 3
    assert len({id(rollout) for each in seen for rollout in each.rollouts[4:]}) == 8
    row = env.train_dataset[0]
    batch = {"prompts": ["?"], "completions": ["none"], "answer": [row["answer"]], "info": [row["info"]]}
    assert env.reward_funcs[0](**batch) == [0.0]
    batch["completions"][0] = _right(row)
    assert env.reward_funcs[0](**batch) == [1.0]
    batch["info"] = [env.train_dataset[1]["info"]]
    assert env.reward_funcs[0](**batch) == [0.0]


def test_functions_can_be_pickled() -> None:
    """Some trainers score in a separate process, where unpickled functions must still share their scores."""
    env = load_environment(**{**SMALL, "num_eval_examples": 0}, rewards=ALL_REWARDS)
    assert env.eval_dataset is None
    texts = [_right(row) for row in env.train_dataset]
    expected = _call(env, texts)
    functions = pickle.loads(pickle.dumps(env.reward_funcs))
    assert len({id(function.scorer) for function in functions}) == 1
    copied = TRLEnvironment(env.train_dataset, None, functions, env.reward_weights, env.mixture, env.manifest)
    assert _call(copied, texts) == expected


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_reward_that_fails_ends_the_run(value: Any) -> None:
    """A reward that returns NaN or None, which TRL ignores, ends the run with an error that names it."""

    async def bad(rollout: Rollout) -> Any:
        return value

    env = load_environment(**SMALL, rewards=["correctness", (bad, 0)])
    with pytest.raises(RewardError, match=r"reward 'bad' returned .*task leg_counting, answer '5'"):
        _call(env, ["<answer>5</answer>"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            (changes, "have no 'answer' column, or no 'info' column.*remove_unused_columns=False")
            for changes in ({"info": None}, {"answer": None}, {"info": [None]}, {"info": [{"task": "leg_counting"}]})
        ),
        ({"info": [{"rg_task": "leg_counting"}]}, "a row's info lacks 'config'"),
        ({"completions": ["a", "b"]}, "must have the same length"),
        ({"completion_ids": []}, "must have the same length"),
    ],
)
def test_batches_that_cannot_be_graded_are_refused(changes: dict[str, Any], message: str) -> None:
    """Incomplete rows and columns of different lengths raise an error instead of scoring 0."""
    env = load_environment(**SMALL)
    row = env.train_dataset[0]
    batch = {"prompts": ["?"], "completions": ["a"], "answer": [row["answer"]], "info": [row["info"]], **changes}
    with pytest.raises(InputError, match=message):
        env.reward_funcs[0](**{key: value for key, value in batch.items() if value is not None})


def test_the_adapter_needs_neither_trl_nor_torch_nor_verifiers() -> None:
    """The adapter works if TRL and Verifiers cannot be imported, and does not import torch or transformers."""
    code = """
import sys
sys.modules.update(dict.fromkeys(["trl", "verifiers"]))
from rg_env.adapters.trl import load_environment
env = load_environment(num_train_examples=2, num_eval_examples=0)
row = env.train_dataset[0]
text = f"<answer>{row['answer']}</answer>"
values = env.reward_funcs[0](prompts=["?"], completions=[text], answer=[row["answer"]], info=[row["info"]])
print(values, {"torch", "transformers"} & set(sys.modules))
"""
    assert run_code(code).stdout.strip() == "[1.0] set()"


@pytest.mark.parametrize(
    ("task", "installed", "message"),
    [
        ("leg_countin", "", "error: unknown task 'leg_countin': did you mean 'leg_counting'"),
        ("leg_counting", "0.24.0", f"error: needs TRL 1.x, but TRL 0.24.0 is installed; see {EXAMPLE} --help for the"),
    ],
)
def test_the_example_reports_mistakes(task: str, installed: str, message: str, tmp_path: Path) -> None:
    """A mistake is reported in one line on standard error, with exit code 2."""
    if installed:
        (tmp_path / f"trl-{installed}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: trl\nVersion: {installed}\n"
        (tmp_path / f"trl-{installed}.dist-info" / "METADATA").write_text(metadata)
    command = [sys.executable, str(EXAMPLE), "--tasks", task]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
