"""The plain environment: rows from any source, the rewards of answers, and Reasoning Gym's tasks as one source."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.data.dataset import build_rows
from rg_env.core.environment import Environment, ReasoningGym
from rg_env.core.event_loop import run_async
from rg_env.core.grading.extraction import extract
from rg_env.core.grading.scoring import Rollout, score, score_match
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.errors import InputError, RewardError, UnknownNameError
from rg_env.training.config.grpo import GRPOConfig

CHAT = [{"role": "user", "content": "1 + 1?"}]
ROWS = [{"question": f"{n} + 0?", "answer": str(n)} for n in range(1, 4)]


def test_rows_of_every_form() -> None:
    """A question becomes a prompt, and a prompt given as messages or text is unchanged; answers become text, and all
    columns are kept."""
    env = Environment(
        [
            {"question": "1 + 1?", "answer": 2, "difficulty": "easy"},
            {"prompt": CHAT, "answer": "2", "info": {"kind": "sum"}},
            {"prompt": "1 + 1 =", "example_id": "seven"},
            {"prompt": "1 + 1 =", "answer": None, "info": None, "question": "1 + 1?"},
        ],
        ({"question": each, "answer": 0.5} for each in ("a", "b")),
    )
    first, second, third, fourth = env.train_rows
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert first["prompt"] == [system, {"role": "user", "content": "1 + 1?"}]
    assert (first["answer"], first["info"], first["example_id"], first["difficulty"]) == ("2", {}, 0, "easy")
    assert (second["prompt"], second["info"]) == (CHAT, {"kind": "sum"})
    assert (third["prompt"], third["answer"], third["example_id"]) == ("1 + 1 =", "", "seven")
    assert (fourth["prompt"], fourth["answer"], fourth["info"]) == ("1 + 1 =", "", {})
    assert [row["answer"] for row in env.eval_rows] == ["0.5", "0.5"]
    assert (env.manifest, env.mixture, env.system_prompt) == (None, None, SYSTEM_PROMPT)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("text", r"train_rows\[1\] must be a mapping with a question or a prompt, not 'text'"),
        ({}, r"train_rows\[1\] has neither a prompt nor a question; it has nothing"),
        ({"answer": "1", "task": "x"}, r"train_rows\[1\] has neither a prompt nor a question; it has answer, task"),
        ({"question": 5}, r"train_rows\[1\]: question must be text, not 5"),
        ({"prompt": [{"role": "user", "content": ""}]}, r"train_rows\[1\]: prompt is blank"),
        ({"question": "?", "answer": "2"},
         r"train_rows\[1\] asks the same question as train_rows\[0\] but has a different answer \('2' and ''\)"),
        ({"prompt": []}, r"train_rows\[1\]: prompt must be text, or a list of messages"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "prompt must be text, or a list of messages"),
        ({"prompt": "\ud800"}, r"train_rows\[1\]: prompt contains an unpaired surrogate"),
        ({"question": "?", "answer": ["1"]}, r"train_rows\[1\]: answer must be text or a number, not \['1'\]"),
        ({"question": "?", "info": "{}"}, r"train_rows\[1\]: info must be a mapping, not '{}'"),
        ({"question": "?", "answer": np.array([1, 2])}, r"answer must be text or a number, not array\(\[1, 2\]\)"),
        ({"question": "?", "answer": float("inf")}, "answer is not a finite number"),
    ],
)  # fmt: skip
def test_bad_rows_are_named_by_index(row: Any, message: str) -> None:
    """The constructor raises an error of one line."""
    with pytest.raises(InputError, match=message) as caught:
        Environment([{"question": "?"}, row])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", [np.int64(5), np.float32(5), np.float64(5)], ids=repr)
def test_numbers_of_numpy_are_answers(answer: Any) -> None:
    env = Environment([{"question": "2 + 3?", "answer": answer}])
    [scored] = env.score([env.rollout(env.train_rows[0], "<answer>5</answer>")])
    assert scored.status == "correct"


def test_numbers_of_numpy_are_sizes_seeds_and_options() -> None:
    """The rows are those of Python's numbers. Booleans are no sizes."""
    task = {"name": "chain_sum", "weight": np.float32(2), "levels": {"num_terms": np.int64(1)}}
    env = ReasoningGym([task], np.int64(3), np.uint8(2), seed=np.int32(4), eval_seed=np.int64(1))
    own = ReasoningGym({"name": "chain_sum", "levels": {"num_terms": 1}}, 3, 2, seed=4, eval_seed=1)
    assert (env.train_rows, env.eval_rows) == (own.train_rows, own.eval_rows)
    with pytest.raises(InputError, match="not True"):
        ReasoningGym("gcd", np.bool_(True), 2)
    assert GRPOConfig(max_steps=np.int64(3), learning_rate=np.float32(0.5), seed=np.uint8(1)).max_steps == 3
    level = ReasoningGym({"name": "gcd", "level": np.int64(1)}, 1, 0)
    assert level.mixture.tasks[0].level == 1


def test_repeated_rows_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated rows are counted in one printed line. A row with other columns, or one in the other split, is not a
    repeat."""
    row = {"question": "1 + 1?", "answer": 2}
    env = Environment([row, {**row, "answer": "2"}, {**row, "info": {"a": 1}}, row], [row])
    assert [each["example_id"] for each in env.train_rows] == [0, 2]
    assert len(env.eval_rows) == 1
    Environment([row, row])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "train_rows: 2 of 4 rows omitted because their questions are repeated"
    assert second == "train_rows: 1 of 2 rows omitted because their questions are repeated"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "train_rows and eval_rows are both empty"),
        ({"train_rows": "rows.csv"}, "train_rows must be a list of rows, not 'rows.csv': read the file first"),
        ({"train_rows": Path("rows.csv")}, "read the file first"),
        ({"train_rows": {"train": [], "test": []}}, r"choose one of its parts, as in DATA\['train'\]"),
        ({"train_rows": {"question": ["?"]}}, r"must be a list of rows, not {'question': \['\?'\]}$"),
        ({"train_rows": pandas.DataFrame([{"question": "?"}])}, r'pass DATA.to_dict\("records"\)'),
        (
            {"train_rows": [{"question": "?"}], "chat_template_kwargs": 5},
            "chat_template_kwargs must be a mapping, not 5",
        ),
        ({"eval_rows": 3}, "eval_rows must be a list of rows, not 3"),
        ({"train_rows": [{"question": "?"}], "rewards": ["corectness"]}, "did you mean 'correctness'"),
        ({"train_rows": [{"question": "?"}], "rewards": [lambda state: 0.0]}, "needs 'state', which this env"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Environment(**arguments)


def test_a_missing_value_of_pandas_is_a_missing_answer() -> None:
    with pytest.raises(InputError, match=r"train_rows\[0\]: answer is missing"):
        Environment([{"question": "?", "answer": pandas.NA}])


def test_rows_without_answers_are_reported_if_correctness_is_rewarded(capsys: pytest.CaptureFixture[str]) -> None:
    """Their correctness is 0, which should not be a surprise."""
    rows = [{"question": "a", "answer": 1}, {"question": "b"}]
    Environment(rows, rewards=[lambda rollout: 0.0])
    assert capsys.readouterr().out == ""
    Environment(rows, rows)
    assert capsys.readouterr().out == (
        "note: no answer in 2 of 4 rows: their correctness is 0, and accuracy is not measured\n"
    )


@pytest.mark.parametrize("row", [None, 0, "?", {"question": "?", "answer": "2"}], ids=repr)
def test_only_rows_of_an_environment_have_rollouts(row: Any) -> None:
    """The user's own rows have no prompt, answer and info yet."""
    env = Environment([{"question": "?", "answer": "2"}])
    with pytest.raises(InputError, match=r"takes a row of the environment, such as env.train_rows\[0\], not"):
        env.rollout(row, "<answer>2</answer>")


@pytest.mark.parametrize("text", [None, 5, b"<answer>2</answer>", [{"role": "assistant", "content": "2"}]], ids=repr)
def test_a_completion_that_is_not_text_is_not_scored_as_a_missing_answer(text: Any) -> None:
    env = Environment([{"question": "?", "answer": "2"}])
    with pytest.raises(InputError, match="a completion must be text, not"):
        env.rollout(env.train_rows[0], text)


def test_only_rollouts_are_scored() -> None:
    """Rollouts from a generator are not lost."""
    env = Environment([{"question": "?", "answer": "2"}])
    rollout = env.rollout(env.train_rows[0], "<answer>2</answer>")
    assert [each.status for each in env.score(each for each in (rollout, rollout))] == ["correct"] * 2
    for wrong in (None, rollout, "text", ["<answer>2</answer>"], [(env.train_rows[0], "<answer>2</answer>")]):
        with pytest.raises(InputError, match=r"score takes a list of rollouts, such as \[env.rollout\(row, text\)\]"):
            env.score(wrong)  # type: ignore[arg-type]


def test_rewards_are_weighted_and_see_the_row() -> None:
    """Rewards receive the parameters that they name. Rewards with weight 0 are only measured, and gates apply."""

    def hinted(rollout: Rollout, info: Any, task: str, completion: Any, prompt: Any) -> float:
        assert (task, info) == ("default", {"kind": "sum"})
        assert rollout.score is rollout.score  # graded once
        assert completion == [{"role": "assistant", "content": rollout.text}]
        assert prompt[-1]["content"] == "1 + 1?"
        return float(rollout.row["bonus"])

    gated = {"name": "length", "weight": 2.0, "when": "correct", "options": {"max_tokens": 10}}
    row = {"prompt": CHAT, "answer": "2", "info": {"kind": "sum"}, "bonus": 0.5}
    env = Environment([row], rewards=[("correctness", 1.0), (hinted, 0.2), gated, ("format", 0)])
    [row] = env.train_rows
    right, wrong = env.score(
        [
            env.rollout(row, "<answer>2</answer>", token_ids=[1, 2, 3, 4, 5]),
            env.rollout(row, "<answer>3</answer>", completion_tokens=5),
        ]
    )
    assert right.rewards == {"correctness": 1.0, "hinted": 0.5, "length": 0.5, "format": 1.0}
    assert right.reward == pytest.approx(1.0 + 0.2 * 0.5 + 2.0 * 0.5)
    assert wrong.rewards == {"correctness": 0.0, "hinted": 0.5, "length": 0.0, "format": 1.0}
    assert wrong.reward == pytest.approx(0.1)
    assert env.reward_weights == {"correctness": 1.0, "hinted": 0.2, "length": 2.0, "format": 0.0}
    statuses = {"status/wrong": 0.0, "status/no_answer": 0.0, "status/too_long": 0.0}
    assert right.metrics == {"accuracy": 1.0, **statuses}
    assert wrong.metrics == {"accuracy": 0.0, **statuses, "status/wrong": 1.0}
    assert (right.status, wrong.status) == ("correct", "wrong")
    assert repr(env) == f"Environment(1 training and 0 evaluation rows, rewards {env.reward_weights})"


@pytest.mark.parametrize(
    ("error", "words"), [(SystemExit("no key"), "SystemExit: no key"), (asyncio.CancelledError(), "CancelledError")]
)
@pytest.mark.parametrize("concurrent", [False, True])
def test_a_reward_that_exits_or_is_canceled_is_an_error(error: BaseException, words: str, concurrent: bool) -> None:
    """Such a reward neither ends the process nor hangs the event loop, which serves later calls."""

    async def later(rollout: Rollout) -> float:
        raise error

    def now(rollout: Rollout) -> float:
        raise error

    async def fine(rollout: Rollout) -> float:
        await asyncio.sleep(0)
        return 1.0

    for rewards in ([later], [fine, now] if concurrent else [now]):
        env = Environment(ROWS, ROWS, rewards=rewards)
        with pytest.raises(RewardError, match=rf"reward '(later|now)' raised {words}"):
            env.score([env.rollout(row, "<answer>1</answer>") for row in env.train_rows])
    env = Environment(ROWS, ROWS, rewards=[fine])
    assert [each.reward for each in env.score([env.rollout(env.train_rows[0], "x")])] == [1.0]


def test_an_interrupt_in_a_coroutine_reaches_the_caller() -> None:
    """The event loop keeps running."""

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def one() -> int:
        return 1

    with pytest.raises(KeyboardInterrupt):
        run_async(interrupted())
    assert run_async(one()) == 1


def test_partial_credit_for_own_rows_is_correctness() -> None:
    env = Environment(ROWS, ROWS, rewards=["partial", "correctness"])
    for text in (f"<answer>{env.train_rows[0]['answer']}</answer>", "<answer>no</answer>", ""):
        [scored] = env.score([env.rollout(env.train_rows[0], text)])
        assert scored.rewards["partial"] == scored.rewards["correctness"]


def test_async_rewards_of_a_batch_run_concurrently() -> None:
    """Async rewards, such as a judge, have gates and options like any others, and their errors name the rollout. They
    also work inside a running event loop, as in a notebook."""
    together = asyncio.Barrier(3)

    async def judged(rollout: Rollout, bonus: float = 0.0) -> float:
        async with asyncio.timeout(30), together:  # entered only when all three have arrived
            if rollout.text == "bad":
                raise KeyError("x")
            return len(rollout.text) + bonus

    spec = [{"name": judged, "options": {"bonus": 0.5}}, {"name": "format", "when": "answered"}]
    env = Environment([{"question": "?"}], rewards=spec)
    [row] = env.train_rows

    async def cell(*texts: str) -> list[Any]:
        return env.score([env.rollout(row, text) for text in texts])

    found = asyncio.run(cell("a", "ab", "<answer>1</answer>"))
    assert [each.rewards["judged"] for each in found] == [1.5, 2.5, 18.5]
    assert [each.rewards["format"] for each in found] == [0.0, 0.0, 1.0]
    with pytest.raises(RewardError, match=r"reward 'judged' raised KeyError: 'x' \(.*, line \d+\); .*completion 'bad'"):
        asyncio.run(cell("a", "bad", "b"))


def test_accuracy_needs_an_answer_to_every_row() -> None:
    """If a row has no answer, the metric is missing rather than computed over the other rows."""
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?"}]
    assert Environment(rows[:1]).has_accuracy
    env = Environment(rows)
    assert not env.has_accuracy
    assert [scored.metrics for scored in env.score([env.rollout(row, "1") for row in env.train_rows])] == [{}, {}]


def extracted(text: object) -> Any:
    return extract(f"so <answer>{text}</answer>")


@pytest.mark.parametrize("gold", ["1234567", "1,234,567", "1234567.0", "2469134/2"])
def test_numbers_are_compared_by_value(gold: str) -> None:
    """A number may have separators, and may be a decimal or a fraction; no other number is right."""
    for text in ("1234567", "1,234,567", " 1234567.00 ", "2469134/2", "$1234567$", "$1,234,567"):
        assert score_match(extracted(text), gold).status == "correct", text
    for text in ("1234568", "1234567.5", "-1234567", "1234567/2", "1234567 1234567"):
        assert score_match(extracted(text), gold).status == "wrong", text


@given(st.text(st.characters(categories=["L"]), min_size=1, max_size=12).filter(str.isascii), st.booleans())
def test_texts_are_compared_without_case_and_spacing(word: str, upper: bool) -> None:
    """Letter case, spacing, a final period and bold markup do not matter."""
    text = f" {word.upper() if upper else word.lower()} \n end."
    assert score_match(extracted(text), f"{word} end").status == "correct"
    assert score_match(extracted(f"**{word} end**"), f"{word} end").status == "correct"
    assert score_match(extracted(f"{word} {word} end"), f"{word} end").status == "wrong"


@pytest.mark.parametrize(
    ("text", "gold"), [("pear,fig", "pear, fig"), ("[1,2]", "[1, 2]"), ("Fig , pear", "fig, pear")]
)
def test_spaces_at_commas_do_not_matter(text: str, gold: str) -> None:
    assert score_match(extracted(text), gold).status == "correct"
    assert score_match(extracted(gold), text).status == "correct"
    assert score_match(extracted(text.replace(",", "")), gold).status == "wrong"


@given(st.text(max_size=30), st.text(max_size=8))
def test_grading_never_raises(answer: str, gold: str) -> None:
    """Any model output gets a score from 0 to 1; without a gold answer, none is right."""
    found = score_match(extract(answer), gold)
    assert 0.0 <= found.value <= 1.0
    assert (found.value == 1.0) is (found.status == "correct")
    if not gold.strip():
        assert found.status in ("no_answer", "ungradable")


def test_an_answer_over_the_length_limit_is_too_long() -> None:
    """An answer may be longer if the gold answer is about as long."""
    assert score_match(extracted("1" * 20_000), "1").status == "too_long"
    assert score_match(extracted("a" * 20_000), "a" * 20_000).status == "correct"


def test_workers_grade_answers_concurrently() -> None:
    """Eight answers are graded at the same time, even on Python 3.11, whose cached properties share a lock."""
    together = threading.Barrier(8)

    class Info(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            together.wait(timeout=30)  # breaks unless all eight arrive
            return super().__contains__(key)

    env = ReasoningGym("leg_counting", 8, 0, grading="upstream")
    rollouts = [env.rollout({**row, "info": Info(row["info"])}, "") for row in env.train_rows]
    assert [each.reward for each in env.score(rollouts)] == [0.0] * 8


def test_reasoning_gym_is_an_environment() -> None:
    """The rows are those of `build_rows` and use the requested grading. Gold answers are right, and rows drawn later
    get the same prompts."""
    env = ReasoningGym(["leg_counting", "chain_sum"], 6, 4, seed=3, grading="partial")
    drawn = build_rows(["leg_counting", "chain_sum"], "train", 6, 3)
    assert [row["question"] for row in env.train_rows] == [row["question"] for row in drawn]
    assert env.to_examples(drawn) == env.train_rows
    with pytest.raises(InputError, match=r"not {'question': '\?'}: for your own rows, use rg_env.Environment"):
        env.to_examples([{"question": "?"}])  # type: ignore[typeddict-item]
    assert repr(env).startswith(
        "ReasoningGym(leg_counting, chain_sum, 6 training and 4 evaluation rows, rewards {'corr"
    )
    assert {row["info"]["grading"] for row in env.train_rows} == {"partial"}
    scored = env.score([env.rollout(row, f"<answer>{row['answer']}</answer>") for row in env.eval_rows])
    assert [each.reward for each in scored] == [1.1] * 4
    tasks = [row["info"]["rg_task"] for row in env.eval_rows]
    for task, each in zip(tasks, scored, strict=True):
        assert {name for name in each.metrics if name.startswith("accuracy")} == {"accuracy", f"accuracy/{task}"}
    again = ReasoningGym(["leg_counting", "chain_sum"], 6, 4, seed=3, manifest=env.manifest)
    assert again.manifest == env.manifest
    with pytest.raises(InputError, match="the seed of the train rows is 3 in the manifest but 4 here"):
        ReasoningGym(["leg_counting", "chain_sum"], 6, 4, seed=4, manifest=env.manifest)
    with pytest.raises(UnknownNameError, match="did you mean 'leg_counting'"):
        ReasoningGym("leg_countin")


def test_examples_are_training_questions_of_the_same_task() -> None:
    """Each task has its own examples, with right answers that differ. They are not in the evaluation split, even if it
    has every evaluation question there is."""
    small = {"name": "chain_sum", "config": {"max_terms": 2, "max_digits": 1}}
    env = ReasoningGym([small, "leg_counting"], 8, 200, few_shot=3)
    questions = {row["question"] for row in env.eval_rows}
    seen = {}
    for row in env.eval_rows:
        system, *examples, last = row["prompt"]
        assert (system["role"], last["content"]) == ("system", row["question"])
        assert seen.setdefault(row["info"]["rg_task"], examples) == examples
    for task, examples in seen.items():
        asked, replies = ([each["content"] for each in examples[start::2]] for start in (0, 1))
        assert len(asked) == len(set(replies)) == 3
        assert questions.isdisjoint(asked)
        rows = {
            row["question"]: row for row in build_rows(small if task == "chain_sum" else task, "train", 60, 1_000_003)
        }
        assert all(
            score(reply, rows[question]["info"]).value == 1 for question, reply in zip(asked, replies, strict=True)
        )
    with pytest.raises(InputError, match="few_shot can be a number only for tasks"):
        Environment(ROWS, few_shot=2)


def test_an_example_that_is_the_question_is_left_out() -> None:
    """Otherwise, some training prompts would contain their answers."""
    env = ReasoningGym({"name": "chain_sum", "config": {"max_terms": 2, "max_digits": 1}}, 60, 4, few_shot=3)
    counts = set[int]()
    for row in env.train_rows:
        asked = [each["content"] for each in row["prompt"] if each["role"] == "user"]
        assert asked.count(row["question"]) == 1
        counts.add(len(asked) - 1)
    assert counts == {2, 3}
